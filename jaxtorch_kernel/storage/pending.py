"""Buffers whose array is not computed yet (deferred execution, `deferred/`).

While a call is deferred, the buffers that it makes or writes are pending: they have another class, and in place of
their array the index of their value among those of the open window. Size, dtype and layout are known. Reading `array`
computes all deferred calls first. Then the buffer has its array and its original class again, so a buffer that is not
pending has no overhead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from .buffer import Buffer

_array = vars(Buffer)["array"]
# What is in place of the array: an index while the buffer is pending.
index_of: Callable[[Buffer], int] = _array.__get__
set_raw: Callable[[Buffer, object], None] = _array.__set__
_set_class: Callable[[Buffer, type[Buffer]], None] = vars(object)["__class__"].__set__
_consume = deque[None](maxlen=0).extend


def _nothing() -> None:
    pass


# Computes all deferred calls; set by `deferred/`.
flush: Callable[[], None] = _nothing


class _Pending:
    """The first base class of a pending buffer."""

    __slots__ = ()
    pending = True

    @property
    def array(self) -> object:
        value = _array.__get__(self)
        if type(value) is int:
            flush()
            value = _array.__get__(self)
            if type(value) is int:
                raise RuntimeError(
                    "jaxtorch lost the value of a deferred call. This is a bug: please report it."
                )
        return value

    @array.setter
    def array(self, value: object) -> None:
        settle([self], [value])  # type: ignore[list-item]  # it is a Buffer too


class _Classes(dict[type[Buffer], type[Buffer]]):
    """The class of pending buffers for each class of buffers."""

    def __missing__(self, cls: type[Buffer]) -> type[Buffer]:
        return self.setdefault(
            cls, type(f"Pending{cls.__name__}", (_Pending, cls), {"__slots__": ()})
        )


CLASSES = _Classes()


def suspend(buffers: Sequence[Buffer], indices: Sequence[int]) -> None:
    """Make buffers pending, or give pending ones other indices."""
    classes = [b.__class__ if b.pending else CLASSES[b.__class__] for b in buffers]
    _set(buffers, indices, classes)


def settle(buffers: Sequence[Buffer], arrays: Iterable[object]) -> None:
    """Give buffers their arrays, which may be computed as they are asked for; pending buffers no longer are."""
    # Another thread may have settled one.
    classes = [b.__class__.__bases__[1] if b.pending else b.__class__ for b in buffers]
    _set(buffers, arrays, classes)


def _set(
    buffers: Sequence[Buffer], values: Iterable[object], classes: Sequence[type[Buffer]]
) -> None:
    """Set what is in place of the arrays, and the classes, in one call of C code, so that Ctrl-C comes before or after.

    It is also faster: an optimizer's step makes hundreds of buffers pending, and settles them.
    """
    _consume(chain(map(set_raw, buffers, values), map(_set_class, buffers, classes)))
