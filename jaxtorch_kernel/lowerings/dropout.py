"""Dropout and its gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .promote import cast, in_opmath
from .registry import lower


@lower("native_dropout", random=True)
def dropout(key: Any, input: Any, p: Any, train: bool | None) -> tuple[jax.Array, jax.Array]:
    if train is False:
        return input, jnp.ones(input.shape, bool)
    keep = 1 - cast(p, jnp.float32)
    mask = jax.random.uniform(key, input.shape, jnp.float32) < keep
    # Nothing is kept at p = 1, where the scale would be infinite.
    scale = jnp.where(keep > 0, 1 / keep, 0)
    return _masked(input, mask, scale), mask


@in_opmath
def _masked(x: Any, mask: Any, scale: Any) -> jax.Array:
    return jnp.where(mask, x * cast(scale, x.dtype), 0)


@lower("native_dropout_backward")
def dropout_backward(grad_output: Any, mask: Any, scale: Any) -> jax.Array:
    return _masked(grad_output, mask, scale)


@lower("_fused_dropout", random=True)
def fused_dropout(key: Any, self: Any, p: Any) -> tuple[jax.Array, jax.Array]:
    """`p` is what is kept here, unlike everywhere else in torch."""
    result, mask = dropout(key, self, 1 - cast(p, jnp.float32), True)
    return result, mask.astype(jnp.uint8)


@lower("_masked_scale")
def masked_scale(self: Any, mask: Any, scale: Any) -> jax.Array:
    return _masked(self, mask != 0, scale)
