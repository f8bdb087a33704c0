"""The cache of eager programs: the recently used ones, up to `config.program_memory` bytes.

The hot path only reads a table and does not record uses, so programs are aged instead. Whenever new programs have
filled a quarter of the memory, all programs are set aside. The next call of a program misses the hot path's table once,
finds the program among those set aside, and puts it back. Programs that are still set aside when memory runs short have
not been used since, and are evicted first. While nothing new is compiled, nothing moves. A new `program_memory` takes
effect at the next compilation.

An evicted program is recompiled when it is called again. A caller that is running it holds its own reference.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import jax

from ..base.jax_private import hlo_proto
from ..base.options import config
from . import stats

if TYPE_CHECKING:
    from ..dispatch.program import Program

Key = tuple[Hashable, ...]

# The estimated bytes of a program, since XLA does not report its memory. Measured on the CPU, from an addition
# (0.25 MB) to a QR decomposition (0.6 MB). For a program of a thousand instructions the estimate is twice the truth.
TRACED_BYTES = 40_000
COMPILED_BYTES = 160_000
PER_HLO_BYTE = 48

# Called whenever programs are set aside or dropped.
on_forget: list[Callable[[], None]] = []

_caches: weakref.WeakSet[ProgramCache] = weakref.WeakSet()
_lock = threading.RLock()  # reentrant: a destructor that runs inside may call an operator
_total = 0
_new = 0  # bytes of programs added since all programs were last set aside
_round = 0  # how often they were set aside


class ProgramCache:
    """The programs of one operator.

    Attributes:
        ready: the table that the hot path reads.
        aside: programs that were not used since all programs were set aside.
    """

    __slots__ = ("__weakref__", "aside", "ready")

    def __init__(self) -> None:
        self.ready: dict[Key, Program] = {}
        self.aside: dict[Key, Program] = {}
        _caches.add(self)

    def find(self, key: Key) -> Program | None:
        """The program of a call, if it is in the cache."""
        program = self.ready.get(key)
        if program is None and self.aside:
            with _lock:
                program = self.aside.pop(key, None) or self.ready.get(key)
                if program is not None:
                    self.ready[key] = program
        return program

    def add(self, key: Key, program: Program) -> None:
        """Add a new program; others may be evicted for it."""
        with _lock:
            self.ready[key] = program
            evicted = _add_bytes(program.nbytes)
        del evicted  # outside the lock, because freeing many programs takes long

    def clear(self) -> None:
        """Drop all programs."""
        with _lock:
            self.ready.clear()
            self.aside.clear()


def count_executable(program: Program, executable: jax.stages.Compiled) -> None:
    """Count the memory of a program's executable, which was just compiled."""
    try:
        text = len(hlo_proto(executable) or b"")
    except jax.errors.JaxRuntimeError:  # the platform has no HLO
        text = 0
    count = COMPILED_BYTES + PER_HLO_BYTE * text
    with _lock:
        program.nbytes += count
        evicted = _add_bytes(count)
    del evicted


def total_bytes() -> int:
    """Bytes of all cached programs."""
    with _lock:
        return sum(
            p.nbytes
            for cache in list(_caches)
            for p in (*cache.ready.values(), *cache.aside.values())
        )


def clear() -> None:
    """Drop the programs of all operators."""
    for cache in list(_caches):
        cache.clear()
    _forget()


def _add_bytes(count: int) -> list[Program]:
    """Count added bytes; returns the programs evicted for them."""
    global _total, _new
    _total, _new = _total + count, _new + count
    allowed = config.program_memory
    if allowed is None:
        return []
    if _new > allowed // 4:
        _set_aside()
    return _evicted(allowed) if _total > allowed else []


def _set_aside() -> None:
    global _new, _round
    _new, _round = 0, _round + 1
    for cache in list(_caches):
        for program in cache.ready.values():
            program.round = _round
        cache.aside.update(cache.ready)
        cache.ready.clear()
    _forget()


def _forget() -> None:
    for forget in on_forget:
        forget()


def _evicted(allowed: int) -> list[Program]:
    """Evict programs, least recently used first: a few more than necessary, because the search is slow."""
    global _total
    _total = total_bytes()  # operators and programs may have been freed
    evicted: list[Program] = []
    goal = allowed - allowed // 16
    if _total <= allowed:
        return evicted
    for again in (False, True):
        if again:  # every program set aside is gone, and memory is still short
            _set_aside()
        candidates = [
            (p.round, cache, key) for cache in list(_caches) for key, p in cache.aside.items()
        ]
        for _, cache, key in sorted(candidates, key=lambda c: c[0]):
            if _total <= goal:
                break
            program = cache.aside.pop(key)
            _total -= program.nbytes
            evicted.append(program)
        if _total <= goal:
            break
    stats.evicted += len(evicted)
    return evicted
