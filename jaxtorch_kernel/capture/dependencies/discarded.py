"""Finds the leaves whose `.grad` the traced code discards before it reads it.

Most training steps begin with `optimizer.zero_grad()`. Whether a leaf had a gradient before is then irrelevant, so the
program of the first call, when no leaf has one, is also that of the second.

While code is traced, `torch.Tensor.grad` is a property that notes the code's first access to the gradient of each leaf.
An assignment discards the old gradient, and so does torch's `zero_grad`, which asks whether there is one before it
assigns None. Every other access may decide what the code does next. Backward passes read gradients in C++, unseen; but
the code learns what they found only by an access of its own.
"""

from __future__ import annotations

import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...base.replaced import Replaced
from .frames import is_own

Tensor = torch.Tensor

_gradient: Any = Tensor.grad  # torch's own descriptor
_CLEARING = {
    inspect.unwrap(function).__code__
    for function in (torch.nn.Module.zero_grad, torch.optim.Optimizer.zero_grad)
}


def _none() -> None:
    """There was no gradient."""


def _read() -> object:
    """The code may have used the gradient."""
    return _read


class Discarded:
    """The gradients that one run of traced code discards unread."""

    def __init__(self) -> None:
        # By the identity of a tensor: finds the gradient that the code discarded by its first access. The references
        # are weak: a tensor that outlives the trace would be a result of it.
        self._first: dict[int, Callable[[], object]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the accesses of this thread."""
        _open.discarded.append(self)
        try:
            with _property.applied():
                yield
        finally:
            _open.discarded.remove(self)

    def contains(self, leaf: Tensor, before: Tensor | None) -> bool:
        """Whether the code discarded the gradient that a leaf had before, or would have discarded one."""
        first = self._first.get(id(leaf), _read)
        # A reference to a gradient that is gone gives None, too.
        return first is _none if before is None else first() is before

    def accessed(self, tensor: Tensor, gradient: Callable[[], object]) -> None:
        """The code accessed `.grad`. `gradient`: finds what was there, if it is discarded."""
        self._first.setdefault(id(tensor), gradient)


class _Open(threading.local):
    def __init__(self) -> None:
        self.discarded: list[Discarded] = []
        # An access is running: a mode of torch's repeats it from a function of its own.
        self.inside = False


_open = _Open()


@contextmanager
def _access(tensor: Tensor, discards: bool, frame: types.FrameType) -> Iterator[None]:
    """Note an access to `.grad` by the code of a frame, unless it is part of another one."""
    if _open.inside or not _open.discarded:
        yield
        return
    _open.inside = True
    try:
        if not is_own(frame):
            gradient = _read
            if discards:
                there = _gradient.__get__(tensor)
                gradient = _none if there is None else weakref.ref(there)
            for some in _open.discarded:
                some.accessed(tensor, gradient)
        yield
    finally:
        _open.inside = False


def _get(tensor: Tensor) -> Any:
    frame = sys._getframe(1)
    clears = frame.f_code in _CLEARING and bool(frame.f_locals["set_to_none"])
    with _access(tensor, clears, frame):
        return _gradient.__get__(tensor)


def _set(tensor: Tensor, gradient: Tensor | None) -> None:
    with _access(tensor, True, sys._getframe(1)):
        _gradient.__set__(tensor, gradient)


def _delete(tensor: Tensor) -> None:
    with _access(tensor, True, sys._getframe(1)):
        _gradient.__delete__(tensor)


_property = Replaced((Tensor, "grad", property(_get, _set, _delete)))
