"""Elementwise operators: arithmetic, comparison, activation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .promote import cast, promote, promote_float
from .registry import lower


@lower("add.Tensor")
def add(self: Any, other: Any, alpha: Any = 1) -> jax.Array:
    self, other = promote(self, other)
    return self + other * cast(alpha, other.dtype)


@lower("mul.Tensor")
def mul(self: Any, other: Any) -> jax.Array:
    self, other = promote(self, other)
    return self * other


@lower("relu")
def relu(self: Any) -> jax.Array:
    return jnp.maximum(self, 0)


@lower("exp")
def exp(self: Any) -> jax.Array:
    (self,) = promote_float(self)
    return jnp.exp(self)


@lower("copy_")
def copy_(self: Any, src: Any, non_blocking: bool = False) -> jax.Array:
    return cast(src, self.dtype)


@lower("normal_", random=True)
def normal_(key: Any, self: Any, mean: Any, std: Any) -> jax.Array:
    return jax.random.normal(key, self.shape, self.dtype) * cast(std, self.dtype) + cast(mean, self.dtype)


@lower("mm")
def mm(self: Any, mat2: Any) -> jax.Array:
    return self @ mat2
