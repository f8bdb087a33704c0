"""The cache of eager programs: the recently used ones, up to `config.program_memory` bytes.

The hot path only reads a table and records no use, so programs are aged instead. Whenever new programs have filled a
quarter of the memory, all programs are set aside. The next call of one misses the hot path's table once, finds the
program among those set aside, and puts it back. Programs still set aside when memory runs short have not been used
since, and are evicted first. While nothing new is compiled, nothing moves. A new `program_memory` takes effect at the
next compilation.

An evicted program is recompiled when it is called again. A caller that is running it holds its own reference.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import jax

from ..base.jax_private import hlo_proto
from ..base.options import config
from . import stats

if TYPE_CHECKING:
    from ..dispatch.program import Program

Key = tuple[Any, ...]

# Bytes of a program, estimated: XLA does not say what it holds. Measured on the CPU, from an addition (0.25 MB) to a
# QR decomposition (0.6 MB); for a program of a thousand instructions it is twice too much.
TRACED = 40_000
COMPILED = 160_000
PER_HLO_BYTE = 48

_all: weakref.WeakSet[Programs] = weakref.WeakSet()
_lock = threading.RLock()  # reentrant: a destructor that runs inside may call an operator
_total = 0
_new = 0  # bytes of programs that came since all were set aside
_round = 0  # how often that was


class Programs:
    """The programs of one operator.

    Attributes:
        ready: what the hot path reads.
        aside: what was not used since all programs were set aside.
    """

    __slots__ = ("__weakref__", "aside", "ready")

    def __init__(self) -> None:
        self.ready: dict[Key, Program] = {}
        self.aside: dict[Key, Program] = {}
        _all.add(self)

    def find(self, key: Key) -> Program | None:
        """The program of a call, where there is one."""
        found = self.ready.get(key)
        if found is None and self.aside:
            with _lock:
                found = self.aside.pop(key, None) or self.ready.get(key)
                if found is not None:
                    self.ready[key] = found
        return found

    def add(self, key: Key, program: Program) -> None:
        """Keep a new program; others may go for it."""
        with _lock:
            self.ready[key] = program
            evicted = _came(program.nbytes)
        del evicted  # outside of the lock: it may be much

    def clear(self) -> None:
        """Forget all of them."""
        with _lock:
            self.ready.clear()
            self.aside.clear()


def compiled(program: Program, executable: jax.stages.Compiled) -> None:
    """A program is compiled, and takes more from now on."""
    try:
        text = len(hlo_proto(executable) or b"")
    except jax.errors.JaxRuntimeError:  # a platform that does not tell
        text = 0
    count = COMPILED + PER_HLO_BYTE * text
    with _lock:
        program.nbytes += count
        evicted = _came(count)
    del evicted


def held() -> int:
    """Bytes of all programs that are kept."""
    with _lock:
        return sum(
            p.nbytes for own in list(_all) for p in (*own.ready.values(), *own.aside.values())
        )


def forget() -> None:
    """Forget the programs of all operators."""
    for own in list(_all):
        own.clear()


def _came(count: int) -> list[Program]:
    """Count bytes that came; returns what had to go."""
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
    for own in list(_all):
        for program in own.ready.values():
            program.round = _round
        own.aside.update(own.ready)
        own.ready.clear()


def _evicted(allowed: int) -> list[Program]:
    """The programs to evict, least recently used first: a few more than necessary, because the search is slow."""
    global _total
    _total = held()  # operators and programs may be gone since
    gone: list[Program] = []
    goal = allowed - allowed // 16
    if _total <= allowed:
        return gone
    for again in (False, True):
        if again:  # everything was used
            _set_aside()
        waiting = [(p.round, own, key) for own in list(_all) for key, p in own.aside.items()]
        for _, own, key in sorted(waiting, key=lambda w: w[0]):
            if _total <= goal:
                break
            program = own.aside.pop(key)
            _total -= program.nbytes
            gone.append(program)
        if _total <= goal:
            break
    stats.evicted += len(gone)
    return gone
