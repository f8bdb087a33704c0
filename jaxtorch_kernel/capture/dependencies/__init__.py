"""The dependencies of a captured program: recorded during the trace, checked before each run, explained on a change.

During the trace:

    recorder.py   sees each function that the code enters
    open_recorders.py  the recorders of this thread, and what other code tells them
    followed.py   decides whose code is followed
    reads.py      finds what a function reads and writes, from its bytecode
    frames.py     finds frames of user code, and the code of torch methods that read all of a module
    chains.py     resolves such a chain of reads from its root in a frame
    closures.py   finds the variables of a running function's closure
    steps.py      steps from an owner to an attribute or an item, and guards it
    values.py     decides what counts as read when a value is used as a whole
    modules.py    notes what a call of a torch module reads
    outside.py    handles what no guard can check: iterators, the clock, files
    boundary.py   decides what may be an argument or a result
    excluded.py   names what the code reads without depending on it
    notes.py      collects what was read and turns it into guards
    objects.py    which objects existed before, and which the code creates
    identities.py checks that a container with several paths is still one object
    gradients.py  finds the leaves whose `.grad` the code set
    discarded.py  finds the leaves whose `.grad` the code discards unread

Before each run:

    guard.py      guards: how to read a value again, and whether it is still the expected one
    guards.py     all guards of a program, and their quick check
    fetch.py      finds a value again
    tokens.py     defines what a guard expects of a value

Side effects of the code:

    slots.py      targets of assignments
    snapshots.py  contents of objects before the trace, to find writes that the bytecode does not show
    effects.py    what the code changed, and how to restore it
    trees.py      containers of tensors that the code assigns
    repeats.py    what each run repeats on Python objects
    landings.py   tensors that the code stores, and each run stores again
    buffer_refs.py  finds the buffers that the code reached
    lasting_effects.py  the effects of a trace, in the form in which a run repeats them
    record.py     the result of one trace: guards, repeats, where tensors are found
"""
