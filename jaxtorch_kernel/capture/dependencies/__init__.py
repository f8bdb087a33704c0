"""What a captured program depends on: recorded while it is traced, checked before each run, explained when it changed.

While it is traced:

    recorder.py   sees each function that the code enters
    followed.py   whose code is followed
    reads.py      what a function reads and writes, from its bytecode
    chains.py     where such a chain begins in a frame, and where it leads
    closures.py   the variables of a running function's closure
    steps.py      from an owner to an attribute or an item, guarded
    values.py     what counts as read of a value that is used as a whole
    modules.py    what a call of a torch module reads
    outside.py    what no guard can watch: iterators, the clock, files
    borders.py    what may be an argument or a result
    notes.py      what was noted, and the guards that it becomes
    gradients.py  of which leaves the code set the `.grad`

Before each run:

    guard.py      the guards: how to read again what was read, and whether it is what it was
    fetch.py      how a value is found again
    tokens.py     what a guard expects of a value

What the code changes:

    slots.py      the places that code writes
    effects.py    what stood there and in containers before, and what the code made of it
    repeats.py    what each run does to Python objects, as the trace did
    cells.py      how a program finds the memory of a tensor again
    record.py     what one trace leaves behind: guards, repeats, places for tensors
"""
