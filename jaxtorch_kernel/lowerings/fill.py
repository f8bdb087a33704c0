"""Operators that assign a given value to every element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .promote import cast
from .registry import lower


@lower("fill.Scalar", "fill.Tensor")
def fill(self: jax.Array, value: Any) -> jax.Array:
    return jnp.broadcast_to(cast(value, self.dtype), self.shape)


@lower("zero")
def zero(self: jax.Array) -> jax.Array:
    return jnp.zeros_like(self)


@lower("copy_")
def copy_(self: jax.Array, src: Any, non_blocking: bool = False) -> jax.Array:
    return cast(src, self.dtype)
