"""Who is told of each eager call while a profile runs: which program, before it is launched.

XLA's own account of an eager call knows the line that compiled its program, not the line that calls it now. While
somebody watches, every eager call leaves the hot path (`tracing.depth` is up, as while code is traced), and the general
path tells. While nobody does, the hot path is as it was: it asks for nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from . import tracing

watcher: Callable[[Any], None] | None = None  # is given the `Program` of each eager call


def fetched(array: Any) -> np.ndarray:
    """`np.asarray` of a `jax.Array`, which a profile shows as what it is: first a wait, then a transfer."""
    with jax.profiler.TraceAnnotation("jaxtorch: wait for a value"):
        jax.block_until_ready(array)
    with jax.profiler.TraceAnnotation("jaxtorch: transfer to the host"):
        return np.asarray(array)


@contextmanager
def watching(told: Callable[[Any], None]) -> Iterator[None]:
    """Tell `told` of every eager call in this process, in the thread of the call.

    Raises:
        RuntimeError: somebody watches already.
    """
    global watcher
    if watcher is not None:
        raise RuntimeError("eager calls are being recorded already: one profile at a time")
    with tracing.aside():
        watcher = told
        try:
            yield
        finally:
            watcher = None
