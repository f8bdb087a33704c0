"""What a captured program depends on: recorded while it is traced, checked before each run, explained when it changed.

reads.py      what code reads and writes, from its bytecode
recorder.py   what it did read, while it was traced
guard.py      the guards: how to read again what was read, and whether it is what it was
tokens.py     what a guard expects of a value
outside.py    what no guard can watch: iterators, the clock, files
effects.py    Python state that the code changes
ambient.py    the state of torch, JAX and this library that any program depends on
"""
