"""Comparisons, predicates, logic, and selection between two operands."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from .promote import cast, promote
from .registry import lower
from .types import Array, Function, Operand

_COMPARISONS: dict[str, Function] = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}

_LOGIC: dict[str, Function] = {
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "logical_not": jnp.logical_not,
}

_TESTS: dict[str, Function] = {
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "isposinf": jnp.isposinf,
    "isneginf": jnp.isneginf,
}


def _promoted(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda self, other: function(*promote(self, other))


def _of_truth(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *operands: function(*(cast(x, bool) for x in operands))


for _name, _function in _COMPARISONS.items():
    lower(f"{_name}.Tensor", f"{_name}.Scalar")(_promoted(_function))
for _name, _function in _LOGIC.items():
    lower(_name)(_of_truth(_function))
for _name, _function in _TESTS.items():
    lower(_name)(_function)


@lower("signbit")
def signbit(self: Array) -> Array:
    return jnp.signbit(self) if self.dtype.kind in "fV" else self < 0


@lower("where.self")
def where(condition: Operand, self: Operand, other: Operand) -> Array:
    self, other = promote(self, other)
    return jnp.where(cast(condition, bool), self, other)


@lower("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Operand, mask: Operand, value: Operand) -> Array:
    (self,) = promote(self)
    return jnp.where(cast(mask, bool), cast(value, self.dtype), self)
