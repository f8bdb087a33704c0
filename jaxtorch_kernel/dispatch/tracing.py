"""Whether a trace is running: then programs are inlined into it instead of called.

`depth` is a plain integer for the whole process, so that the hot path asks one attribute. While it is above zero
a kernel also asks whether the trace is its own thread's: another thread's eager work goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

depth = 0
_own = threading.local()


@contextmanager
def tracing() -> Iterator[None]:
    """Hold while torch code runs over tracers."""
    global depth
    depth += 1
    _own.depth = getattr(_own, "depth", 0) + 1
    try:
        yield
    finally:
        depth -= 1
        _own.depth -= 1


def active() -> bool:
    """Whether this thread is tracing."""
    return depth > 0 and getattr(_own, "depth", 0) > 0


def forbid(array: Any, what: str) -> None:
    """Raise where a traced array would have to have a value.

    Raises:
        Untraceable: it is a tracer.
    """
    if isinstance(array, jax.core.Tracer):
        from .fallback import Untraceable

        raise Untraceable(f"a tensor inside a trace cannot be {what}: it has no value yet")
