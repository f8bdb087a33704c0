"""Cells that a trace has touched: the tracing thread sees the tracer, other threads see the array.

A trace replaces arrays by tracers, but all threads share the cells (Buffers, random sources). So the trace stores the
tracer in a `Local`, and the cell has a different class while a trace touches it: `array` and `spec` become properties
that check whether the reading thread is tracing. The tracing thread gets the value in the Local, every other thread the
value in the cell. A cell that no trace touches has no overhead.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ..storage.buffer import Buffer

own = threading.local()  # `.trace`: this thread's innermost trace
_array = vars(Buffer)["array"]
_spec = vars(Buffer)["spec"]
_lock = threading.Lock()
_traces: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # that have touched it
_shared_classes: dict[type, type] = {}


class Local:
    """The value of a cell in one trace.

    Attributes:
        cell: a weak reference; a cell that the code made and dropped must not count as kept.
        array, spec: what the cell holds now, for the thread of the trace.
        read: what it held when it was last read from outside: another `array` than this was written by the code.
    """

    __slots__ = ("array", "cell", "read", "spec")

    def __init__(self, cell: Any):
        self.cell = weakref.ref(cell)
        self.array = self.read = cell.array
        self.spec = cell.spec


def of(cell: Any) -> Local | None:
    """The value of the cell in the innermost trace of this thread that has touched it."""
    trace = getattr(own, "trace", None)
    while trace is not None:
        mine: Local | None = trace.locals.get(id(cell))
        if mine is not None and mine.cell() is cell:
            return mine
        trace = trace.parent
    return None


class _Shared:
    """In the place of a cell's class while traces touch it."""

    __slots__ = ()

    @property
    def array(self) -> Any:
        mine = of(self)
        return _array.__get__(self) if mine is None else mine.array

    @array.setter
    def array(self, value: Any) -> None:
        mine = of(self)
        if mine is None:
            _array.__set__(self, value)
        else:
            mine.array = value

    @property
    def spec(self) -> Any:
        mine = of(self)
        return _spec.__get__(self) if mine is None else mine.spec

    @spec.setter
    def spec(self, value: Any) -> None:
        mine = of(self)
        if mine is None:
            _spec.__set__(self, value)
        else:
            mine.spec = value


def share(cell: Any) -> None:
    """A trace begins to touch the cell."""
    with _lock:
        count = _traces.get(cell, 0)
        _traces[cell] = count + 1
        if not count:
            cell.__class__ = _shared_class(type(cell))


def unshare(cell: Any) -> None:
    """A trace that touched the cell has ended."""
    with _lock:
        count = _traces.pop(cell) - 1
        if count:
            _traces[cell] = count
        else:
            cell.__class__ = type(cell).__bases__[1]


def _shared_class(cls: type) -> type:
    found = _shared_classes.get(cls)
    if found is None:
        found = _shared_classes[cls] = type(
            f"Shared{cls.__name__}", (_Shared, cls), {"__slots__": ()}
        )
    return found
