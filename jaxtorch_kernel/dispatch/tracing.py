"""Whether a trace is running: then programs are inlined into it instead of called.

`depth` is a plain integer for the whole process, so that the hot path asks one attribute. While it is above zero
a kernel also looks whether its own operands are tracers (`is_traced`): another thread's eager work goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

depth = 0


@contextmanager
def tracing() -> Iterator[None]:
    """Hold while torch code runs over tracers."""
    global depth
    depth += 1
    try:
        yield
    finally:
        depth -= 1


def is_traced(operands: Any) -> bool:
    """Whether a trace is open in this thread that these operands belong to."""
    return any(isinstance(x, jax.core.Tracer) for x in operands) or not _eager()


def _eager() -> bool:
    return bool(jax.core.trace_ctx.is_top_level()) if hasattr(jax.core, "trace_ctx") else True


def forbid(array: Any, what: str) -> None:
    """Raise where a traced array would have to have a value.

    Raises:
        Untraceable: it is a tracer.
    """
    if isinstance(array, jax.core.Tracer):
        from .fallback import Untraceable

        raise Untraceable(f"a tensor inside a trace cannot be {what}: it has no value yet")
