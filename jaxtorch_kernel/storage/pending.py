"""Buffers whose array is not computed yet (deferred execution, `deferred/`).

While a call is deferred, the buffers that it makes or writes are pending: they have another class, and in place of
their array the index of their value among those of the open window. Size, dtype and layout are known. Reading `array`
computes all deferred calls first. Then the buffer has its array and its original class again, so a buffer that is not
pending has no overhead.
"""

from __future__ import annotations

from collections.abc import Callable

from .buffer import Buffer

_array = vars(Buffer)["array"]
# What is in place of the array: an index while the buffer is pending.
index_of: Callable[[Buffer], int] = _array.__get__
set_raw: Callable[[Buffer, object], None] = _array.__set__


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
        settle(self, value)  # type: ignore[arg-type]  # it is a Buffer too


class _Classes(dict[type[Buffer], type[Buffer]]):
    """The class of pending buffers for each class of buffers."""

    def __missing__(self, cls: type[Buffer]) -> type[Buffer]:
        return self.setdefault(
            cls, type(f"Pending{cls.__name__}", (_Pending, cls), {"__slots__": ()})
        )


CLASSES = _Classes()


def suspend(buffer: Buffer, index: int) -> None:
    """Make a buffer pending, or give a pending one another index."""
    set_raw(buffer, index)
    if not buffer.pending:
        buffer.__class__ = CLASSES[type(buffer)]


def settle(buffer: Buffer, array: object) -> None:
    """Give a pending buffer its array."""
    set_raw(buffer, array)
    cls = type(buffer)
    if cls.pending:  # another thread may have settled it
        buffer.__class__ = cls.__bases__[1]
