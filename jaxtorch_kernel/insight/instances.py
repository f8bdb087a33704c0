"""All objects of some classes in the process.

`gc.get_objects()` references every object, also a tuple that another thread is building. `tuple(generator)` then fails
with a SystemError ("bad argument to internal function"), because CPython resizes a tuple only if nothing else refers to
it. So the search is one call into C, which runs no bytecode: no other thread runs until the references are gone. A
garbage collection would run bytecode (callbacks, finalizers), so there is none in the meantime.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from itertools import chain, compress, tee
from typing import Any


def instances(classes: Iterable[type]) -> list[Any]:
    """The objects of exactly these classes that the garbage collector knows, in no particular order."""
    wanted = frozenset(map(id, classes))
    collects = gc.isenabled()
    gc.disable()
    try:
        # No variable holds an iterator: it would keep its last objects until this function returns.
        every = list(tee(chain.from_iterable(map(gc.get_objects, (None,)))))
        return list(
            compress(every.pop(), map(wanted.__contains__, map(id, map(type, every.pop()))))
        )
    finally:
        if collects:
            gc.enable()


def with_subclasses(cls: type) -> Iterator[type]:
    """The class and all that inherit from it; one with several such bases occurs several times."""
    yield cls
    for inner in cls.__subclasses__():
        yield from with_subclasses(inner)
