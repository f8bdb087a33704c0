"""Garbage collections wait while code is traced or compiled.

Tracing a model creates so many objects that Python collects all generations several times. Each full collection visits
every object that torch and JAX have, and takes 0.2 s in a fresh session: a third of the trace of a GPT's step. It finds
little, because the objects of a trace live as long as the trace. So there is none until the program is compiled.

Python counts the objects that survive young collections, and collects everything once they have become many, whether or
not they still exist. So young collections are rare as well: the objects of a trace mostly die with it, uncounted, and
no full collection follows. Python 3.14 collects the old generation bit by bit, at each young collection.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30  # collections of the middle generation before a full one
_SELDOM = 100_000  # new objects before a collection of the youngest generation

_holders: set[object] = set()  # one token for each open block, of any thread
_before: tuple[int, int, int] | None = None  # the thresholds outside all blocks


@contextmanager
def collected_later() -> Iterator[None]:
    """Postpone full collections in the block. `gc.collect()` works as always, and so does `gc.set_threshold`."""
    token = object()
    try:
        _holders.add(token)
        _apply()
        yield
    finally:
        _holders.discard(token)
        _apply()


def _apply() -> None:
    """Set the thresholds that the open blocks need.

    They follow from `_holders` alone. So if an interrupt hits the end of a block, the next block restores the user's.
    """
    global _before
    now = gc.get_threshold()
    if _holders:
        if now[2] != _NEVER:
            _before = now
            gc.set_threshold(*_raised(now))
    elif _before is not None:
        before, _before = _before, None
        if now == _raised(before):  # otherwise the user has set others
            gc.set_threshold(*before)


def _raised(thresholds: tuple[int, int, int]) -> tuple[int, int, int]:
    """The thresholds in a block. The first one of the user's may be 0: no collections at all."""
    young = max(thresholds[0], _SELDOM) if thresholds[0] else 0
    return young, thresholds[1], _NEVER
