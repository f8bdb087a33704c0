"""Computing half types as torch does: in float32 inside an operator, rounded once at its end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from .promote import widen

F = TypeVar("F", bound=Callable[..., Any])


def in_opmath(function: F) -> F:
    """A lowering whose float16 and bfloat16 arrays arrive as float32; the dispatch rounds its results."""

    @functools.wraps(function)
    def wide(*args: Any) -> Any:
        return function(*(widen(a)[0] if isinstance(a, jax.Array) else a for a in args))

    return wide  # type: ignore[return-value]
