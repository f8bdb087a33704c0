"""Arithmetic with two and three operands: sums, products, quotients, remainders, powers, bounds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .elementwise import arithmetic, floating, lower_arithmetic, lower_floating, rounded
from .nondifferentiable import (
    arctan2,
    at_least,
    at_most,
    between,
    copysign,
    fmax,
    fmin,
    hypot,
    inverse_root,
    logaddexp,
    logaddexp2,
    maximum,
    minimum,
    power,
)
from .promote import cast, kind_of, result_dtype
from .registry import lower


@lower("add.Tensor", "add.Scalar")
def add(self: Any, other: Any, alpha: Any = 1) -> jax.Array:
    self, other = arithmetic(self, other)
    return self + other * cast(alpha, other.dtype)


@lower("mul.Tensor", "mul.Scalar")
def mul(self: Any, other: Any) -> jax.Array:
    masks = [isinstance(x, jax.Array) and x.dtype == bool for x in (self, other)]
    left, right = arithmetic(self, other)
    if masks[0] == masks[1] or kind_of(left.dtype) not in "fc":
        return left * right
    # XLA takes a product with a mask for a choice of zero, which inf and NaN times zero are not.
    mask, values = (self, right) if masks[0] else (other, left)
    return jnp.where(mask, values, values * 0)


@lower("sub.Tensor", "sub.Scalar")
def sub(self: Any, other: Any, alpha: Any = 1) -> jax.Array:
    if any(kind_of(result_dtype(x)) == "b" for x in (self, other)):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    self, other = arithmetic(self, other)
    return self - other * cast(alpha, other.dtype)


@lower("rsub.Tensor", "rsub.Scalar")
def rsub(self: Any, other: Any, alpha: Any = 1) -> jax.Array:
    return sub(other, self, alpha)


@lower("_add_relu.Tensor", "_add_relu.Scalar")
def add_relu(self: Any, other: Any, alpha: Any = 1) -> jax.Array:
    return jnp.maximum(add(self, other, alpha), 0)


@lower("addcmul")
def addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> jax.Array:
    self, tensor1, tensor2 = arithmetic(self, tensor1, tensor2)
    return self + cast(value, self.dtype) * tensor1 * tensor2


@lower("addcdiv")
def addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> jax.Array:
    self, tensor1, tensor2 = arithmetic(self, tensor1, tensor2)
    return self + cast(value, self.dtype) * tensor1 / tensor2


@lower("lerp.Tensor", "lerp.Scalar")
def lerp(self: Any, end: Any, weight: Any) -> jax.Array:
    self, end = arithmetic(self, end)
    weight = cast(weight, self.dtype)
    # From the nearer end, so that weights 0 and 1 are exact.
    near_self = abs(weight) < 0.5
    return jnp.where(near_self, self + weight * (end - self), end - (end - self) * (1 - weight))


# -- quotients -------------------------------------------------------------------------------------


@lower("div.Tensor_mode", "div.Scalar_mode")
def div_mode(self: Any, other: Any, rounding_mode: str | None) -> jax.Array:
    if rounding_mode is None:
        return jnp.true_divide(*floating(self, other))
    dtype = result_dtype(self, other)
    self, other = arithmetic(self, other)
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    if kind_of(self.dtype) == "i":
        return lax.div(*jnp.broadcast_arrays(self, other))
    return jnp.trunc(rounded(self / other, dtype))


@lower("floor_divide", "floor_divide.Scalar")
def floor_divide(self: Any, other: Any) -> jax.Array:
    return _floor_divide(*arithmetic(self, other))


def _floor_divide(self: jax.Array, other: jax.Array) -> jax.Array:
    quotient = jnp.floor_divide(self, other)
    if kind_of(self.dtype) == "i":
        return quotient
    return jnp.where(other == 0, self / other, quotient)


def _fmod(self: jax.Array, other: jax.Array) -> jax.Array:
    return lax.rem(*jnp.broadcast_arrays(self, other))


lower_arithmetic(
    {
        "maximum": maximum,
        "minimum": minimum,
        "fmax": fmax,
        "fmin": fmin,
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": jnp.remainder,
        "fmod.Tensor fmod.Scalar": _fmod,
        "hypot": hypot,
        "gcd": jnp.gcd,
        "lcm": jnp.lcm,
    }
)

lower_floating(
    {
        "div.Tensor div.Scalar": jnp.true_divide,
        "atan2": arctan2,
        "logaddexp": logaddexp,
        "logaddexp2": logaddexp2,
        "copysign.Tensor copysign.Scalar": copysign,
    }
)


# -- bounds ----------------------------------------------------------------------------------------


@lower("clamp", "clamp.Tensor")
def clamp(self: Any, min: Any = None, max: Any = None) -> jax.Array:
    self, min, max = arithmetic(self, min, max)
    if max is None:
        return at_least(self, min)
    return at_most(self, max) if min is None else between(self, min, max)


@lower("clamp_min", "clamp_min.Tensor")
def clamp_min(self: Any, min: Any) -> jax.Array:
    return clamp(self, min)


@lower("clamp_max", "clamp_max.Tensor")
def clamp_max(self: Any, max: Any) -> jax.Array:
    return clamp(self, None, max)


# -- powers ----------------------------------------------------------------------------------------

# Up to here an integer exponent is unrolled into products.
_MOST_UNROLLED = 16


@lower("pow.Tensor_Scalar", static=("exponent",))
def pow_number(self: Any, exponent: Any) -> jax.Array:
    (self,) = arithmetic(cast(self, result_dtype(self, exponent)))
    whole = exponent.imag == 0 and float(exponent.real).is_integer()
    if whole and (kind_of(self.dtype) == "i" or abs(exponent) <= _MOST_UNROLLED):
        return lax.integer_pow(self, int(exponent.real))
    if exponent == 0.5:
        return jnp.sqrt(self)
    if exponent == -0.5:
        return inverse_root(self)
    return power(self, cast(exponent, self.dtype))


@lower("pow.Tensor_Tensor", "pow.Scalar")
def pow(self: Any, exponent: Any) -> jax.Array:
    self, exponent = arithmetic(self, exponent)
    result = power(self, exponent)
    if kind_of(self.dtype) != "i" or self.dtype.kind == "u":
        return result
    odd = jnp.where(exponent % 2 == 0, 1, self)
    return jnp.where(exponent < 0, jnp.where(abs(self) == 1, odd, 0), result)
