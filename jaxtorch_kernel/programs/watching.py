"""Who is told of each call while a profile runs: which program, before it is launched, and what it makes.

XLA's own account of a call knows the line that compiled its program, not the line that calls it now. While
somebody watches, every eager call leaves the hot path (`tracing.depth` is up, as while code is traced), and the general
path tells; so do the programs of captured code. While nobody does, the hot path is as it was: it asks for nothing here.

What is made is told so that it can be waited for. XLA computes a result that everybody has dropped to its end, and has
no way to wait for that. Its cell is kept until it is done: not the array, whose memory a later program may take over
if nobody else holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from ..storage.buffer import Buffer
from . import tracing
from .stats import Compiled


class Watcher:
    """One who watches: is told of launches, and keeps what is not computed yet.

    Args:
        launched: is given the record of each program, in the thread of the call.
    """

    def __init__(self, launched: Callable[[Compiled], None]):
        self.launched = launched
        self._pending: deque[Buffer] = deque()

    def made(self, buffer: Buffer) -> None:
        """A program was launched whose result will be in this cell."""
        if tracing.current() is not None:
            return
        pending = self._pending
        pending.append(buffer)
        while pending and _done(pending[0].array):
            pending.popleft()

    def wait(self) -> None:
        """Wait for everything that was made."""
        while self._pending:
            array = self._pending.popleft().array
            if not _done(array):
                jax.block_until_ready(array)


watcher: Watcher | None = None


@contextmanager
def watching(launched: Callable[[Compiled], None]) -> Iterator[Watcher]:
    """Tell of every call in this process.

    Raises:
        RuntimeError: somebody watches already.
    """
    global watcher
    if watcher is not None:
        raise RuntimeError("eager calls are being recorded already: one profile at a time")
    with tracing.aside():
        watcher = Watcher(launched)
        try:
            yield watcher
        finally:
            watcher = None


def launching(record: Compiled | None) -> None:
    """A compiled program is about to be called in this thread."""
    if watcher is not None and record is not None:
        watcher.launched(record)


def fetched(array: Any) -> np.ndarray:
    """`np.asarray` of a `jax.Array`, which a profile shows as what it is: first a wait, then a transfer."""
    with jax.profiler.TraceAnnotation("jaxtorch: wait for a value"):
        jax.block_until_ready(array)
    with jax.profiler.TraceAnnotation("jaxtorch: transfer to the host"):
        return np.asarray(array)


def _done(array: Any) -> bool:
    """Whether nothing is left to wait for; an array that was given to a program is that one's."""
    return isinstance(array, jax.core.Tracer) or array.is_deleted() or array.is_ready()
