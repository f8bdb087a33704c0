"""Profiler hooks: called before each launch with its program, and after it with its results.

XLA's own trace of a call records the line that compiled its program, not the line that calls it now. While a profiler
is active, every eager call leaves the hot path (`tracing.depth` is raised, as while code is traced), and the general
path calls the hooks; so do the programs of captured code. Otherwise the hot path is unchanged and checks nothing here.
`insight/events.py` is separate: it observes compilations and counts calls for a whole session, on the hot path.

Results are reported so that the profiler can wait for them. XLA computes a result to the end even if every reference
to it was dropped, and offers no way to wait for that. So the watcher holds the result's buffer until it is computed,
but not the array, whose memory a later program may reuse if nothing else holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np

from ..storage import placement
from ..storage.buffer import Buffer
from . import tracing
from .stats import ProgramRecord


class Watcher:
    """A profiler's hook: receives launches, and holds the results that are not computed yet.

    Args:
        launched: called with the record of each program, in the calling thread.
    """

    def __init__(self, launched: Callable[[ProgramRecord], None]):
        self.launched = launched
        self._pending: deque[Buffer] = deque()

    def add_result(self, buffer: Buffer) -> None:
        """Note the buffer for the result of a program that was launched."""
        if tracing.current() is not None:
            return
        pending = self._pending
        pending.append(buffer)
        while pending and _done(pending[0].array):
            pending.popleft()

    def wait(self) -> None:
        """Wait for all results."""
        while self._pending:
            array = self._pending.popleft().array
            if not _done(array):
                jax.block_until_ready(array)


watcher: Watcher | None = None


@contextmanager
def watching(launched: Callable[[ProgramRecord], None]) -> Iterator[Watcher]:
    """Report every call in this process.

    Raises:
        RuntimeError: a profile is already active.
    """
    global watcher
    if watcher is not None:
        raise RuntimeError(
            "eager calls are already being recorded: only one profile can run at a time"
        )
    with tracing.aside():
        watcher = Watcher(launched)
        try:
            yield watcher
        finally:
            watcher = None


def launching(record: ProgramRecord | None) -> None:
    """A compiled program is about to be called in this thread."""
    if watcher is not None and record is not None:
        watcher.launched(record)


def fetched(array: jax.Array) -> np.ndarray:
    """`np.asarray` of an array. A profile shows its two parts: a wait, then a transfer."""
    with jax.profiler.TraceAnnotation("jaxtorch: wait for a value"):
        jax.block_until_ready(array)
    with jax.profiler.TraceAnnotation("jaxtorch: transfer to the host"):
        return np.asarray(array)


def copied(arrays: list[jax.Array]) -> list[jax.Array]:
    """As `placement.all_copied`, in a profile."""
    with jax.profiler.TraceAnnotation("jaxtorch: copy"):
        return placement.all_copied(arrays)


def _done(array: jax.Array) -> bool:
    """Whether there is nothing to wait for; a donated array belongs to a later program."""
    if isinstance(array, jax.core.Tracer) or array.is_deleted():
        return True
    return bool(array.is_ready())  # type: ignore[attr-defined]  # not in JAX's stubs
