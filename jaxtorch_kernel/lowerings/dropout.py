"""Dropout and its gradient."""

from __future__ import annotations

import jax.numpy as jnp

from .draws import Draws
from .promote import cast, in_opmath, promote
from .registry import lower
from .types import Array, Operand, Scalar


@lower("native_dropout", random=True)
def dropout(draws: Draws, input: Array, p: Operand, train: bool | None) -> tuple[Array, Array]:
    if train is False:
        return input, jnp.ones(input.shape, bool)
    keep = 1 - cast(p, jnp.float32)
    mask = draws.uniform(input.shape, jnp.float32) < keep
    # At p = 1 all elements are dropped, and 1 / keep would be infinite.
    scale = jnp.where(keep > 0, 1 / keep, 0)
    return _masked(input, mask, scale), mask


@in_opmath
def _masked(x: Array, mask: Array, scale: Scalar) -> Array:
    return jnp.where(mask, x * cast(scale, x.dtype), 0)


@lower("native_dropout_backward")
def dropout_backward(grad_output: Operand, mask: Operand, scale: Scalar) -> Array:
    return _masked(*promote(grad_output), cast(mask, bool), scale)


@lower("_fused_dropout", random=True)
def fused_dropout(draws: Draws, self: Array, p: Scalar) -> tuple[Array, Array]:
    """Dropout where `p` is the probability to keep an element, unlike in torch's other operators."""
    result, mask = dropout(draws, self, 1 - cast(p, jnp.float32), True)
    return result, mask.astype(jnp.uint8)


@lower("_masked_scale")
def masked_scale(self: Array, mask: Array, scale: Scalar) -> Array:
    return _masked(self, mask != 0, scale)
