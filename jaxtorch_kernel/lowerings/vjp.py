"""Backward operators, derived from the forward lowering with `jax.vjp`.

XLA removes everything that the cotangent does not need, so this is as fast as a hand-written backward if the
operator is linear or recomputation is cheap (convolutions, pooling, normalization).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax


def vjp(function: Callable[..., Any], primals: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
    """Gradients of `function` at `primals` (arrays of floating or complex dtype), conjugated as torch's are.

    Args:
        function: takes the primals, returns an array or a tuple of arrays.
        cotangents: of the same structure as what it returns; cast to the dtypes it returns.
    """
    out, pullback = jax.vjp(function, *primals)
    cotangents = jax.tree.map(lambda c, o: c.astype(o.dtype).conj(), cotangents, out)
    return tuple(g.conj() for g in pullback(cotangents))


def transpose(function: Callable[[Any], Any], size: Sequence[int], grad: Any) -> Any:
    """The gradient of a linear function of one array of this size, which is not needed for it."""
    primal = jax.ShapeDtypeStruct(tuple(size), grad.dtype)
    (result,) = jax.linear_transpose(function, primal)(grad)
    return result
