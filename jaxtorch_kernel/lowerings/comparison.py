"""Comparisons, predicates, logic, and selection between two operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .promote import cast, promote
from .registry import lower

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}

_LOGIC: dict[str, Callable[..., Any]] = {
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "logical_not": jnp.logical_not,
}

_TESTS: dict[str, Callable[..., Any]] = {
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "isposinf": jnp.isposinf,
    "isneginf": jnp.isneginf,
}


def _promoted(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda self, other: function(*promote(self, other))


def _of_truth(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *operands: function(*(cast(x, bool) for x in operands))


for _name, _function in _COMPARISONS.items():
    lower(f"{_name}.Tensor", f"{_name}.Scalar")(_promoted(_function))
for _name, _function in _LOGIC.items():
    lower(_name)(_of_truth(_function))
for _name, _function in _TESTS.items():
    lower(_name)(_function)


@lower("signbit")
def signbit(self: jax.Array) -> jax.Array:
    return jnp.signbit(self) if self.dtype.kind in "fV" else self < 0


@lower("where.self")
def where(condition: jax.Array, self: Any, other: Any) -> jax.Array:
    self, other = promote(self, other)
    return jnp.where(condition.astype(bool), self, other)


@lower("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: jax.Array, mask: jax.Array, value: Any) -> jax.Array:
    return jnp.where(mask.astype(bool), cast(value, self.dtype), self)
