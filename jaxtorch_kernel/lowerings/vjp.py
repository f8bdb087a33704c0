"""Backward operators, derived from the forward lowering with `jax.vjp`.

XLA removes the parts of the forward that the gradient does not need, so this is as fast as a hand-written backward if
the operator is linear or cheap to recompute (convolutions, pooling, normalization).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

from .types import Array

Tree = TypeVar("Tree", Array, tuple[Array, ...])


def vjp(
    function: Callable[..., Tree], primals: tuple[Array, ...], cotangents: Tree
) -> tuple[Array, ...]:
    """The gradients of `function` at `primals` (arrays of floating or complex dtype), conjugated like torch's.

    Args:
        function: takes the primals, returns an array or a tuple of arrays.
        cotangents: one for each array that it returns; cast to that array's dtype.
    """
    out, pullback = jax.vjp(function, *primals)
    cotangents = jax.tree.map(lambda c, o: c.astype(o.dtype).conj(), cotangents, out)
    return tuple(g.conj() for g in pullback(cotangents))


def transpose(function: Callable[[Array], Array], size: Sequence[int], grad: Array) -> Array:
    """The gradient of a linear function of one array of this size; the array itself is not needed."""
    primal = jax.ShapeDtypeStruct(tuple(size), grad.dtype)
    result: Array
    (result,) = jax.linear_transpose(function, primal)(grad)
    return result
