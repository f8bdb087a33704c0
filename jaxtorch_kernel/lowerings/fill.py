"""Operators that assign one value to every element."""

from __future__ import annotations

import jax.numpy as jnp

from .promote import cast
from .registry import lower
from .types import Array, Operand


@lower("fill.Scalar", "fill.Tensor")
def fill(self: Array, value: Operand) -> Array:
    return jnp.broadcast_to(cast(value, self.dtype), self.shape)


@lower("zero")
def zero(self: Array) -> Array:
    return jnp.zeros_like(self)


@lower("copy_")
def copy_(self: Array, src: Operand, non_blocking: bool = False) -> Array:
    return cast(src, self.dtype)
