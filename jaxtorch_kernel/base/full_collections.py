"""Full garbage collections wait while code is traced or compiled.

Tracing a model creates so many objects that Python collects all generations several times. Each full collection visits
every object that torch and JAX have, and takes 0.2 s in a fresh session: a third of the trace of a GPT's step. It finds
little, because the objects of a trace live as long as the trace. So only the young generations are collected until the
program is compiled. Python 3.14 collects the old generation bit by bit, and ignores the setting.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30  # collections of the middle generation before a full one

_holders: set[object] = set()  # one token for each open block, of any thread
_before: tuple[int, int, int] | None = None  # the thresholds outside all blocks


@contextmanager
def postponed() -> Iterator[None]:
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
    """Set the threshold that the open blocks need.

    It follows from `_holders` alone. So if an interrupt hits the end of a block, the next block restores the user's.
    """
    global _before
    now = gc.get_threshold()
    if _holders:
        if now[2] != _NEVER:
            _before = now
            gc.set_threshold(now[0], now[1], _NEVER)
    elif _before is not None:
        before, _before = _before, None
        if now == (before[0], before[1], _NEVER):  # otherwise the user has set another one
            gc.set_threshold(*before)
