"""The dependencies of a captured program: recorded during the trace, checked before each run, explained on a change.

During the trace:

    recorder.py   sees each function that the code enters
    followed.py   decides whose code is followed
    reads.py      finds what a function reads and writes, from its bytecode
    chains.py     resolves such a chain of reads from its root in a frame
    closures.py   finds the variables of a running function's closure
    steps.py      steps from an owner to an attribute or an item, and guards it
    values.py     decides what counts as read when a value is used as a whole
    modules.py    notes what a call of a torch module reads
    outside.py    handles what no guard can watch: iterators, the clock, files
    borders.py    decides what may be an argument or a result
    notes.py      collects what was read and turns it into guards
    gradients.py  finds the leaves whose `.grad` the code set

Before each run:

    guard.py      guards: how to read a value again, and whether it is still the expected one
    fetch.py      finds a value again
    tokens.py     says what a guard expects of a value

Side effects of the code:

    slots.py      places that code writes
    effects.py    contents of slots and containers before the trace, and how the code changed them
    repeats.py    what each run repeats on Python objects
    cells.py      finds the memory of a tensor again
    record.py     the result of one trace: guards, repeats, places for tensors
"""
