"""All objects of some classes in the process.

`gc.get_objects()` would reference every object, also a tuple that another thread is building. `tuple(generator)` then
fails with a SystemError ("bad argument to internal function"), because CPython resizes a tuple only if nothing else
refers to it. `gc.get_referrers(cls)` references only objects that refer to the class, as its instances do.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any


def instances(classes: Iterable[type]) -> list[Any]:
    """The objects of exactly these classes, which are written in Python, in no particular order."""
    wanted = frozenset(classes)
    return [value for value in gc.get_referrers(*wanted) if type(value) in wanted]


def with_subclasses(cls: type) -> Iterator[type]:
    """The class and all that inherit from it; one with several such bases occurs several times."""
    yield cls
    subclasses: list[type] = cls.__subclasses__()
    for inner in subclasses:
        yield from with_subclasses(inner)
