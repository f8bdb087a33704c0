"""Arithmetic with two and three operands: sums, products, quotients, remainders, powers, bounds."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from . import bounds
from .elementwise import arithmetic, floating, lower_arithmetic, lower_floating, rounded
from .nondifferentiable import (
    arctan2,
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
from .types import Array, Operand, Scalar


@lower("add.Tensor", "add.Scalar")
def add(self: Operand, other: Operand, alpha: Scalar = 1) -> Array:
    self, other = arithmetic(self, other)
    return self + other * cast(alpha, other.dtype)


@lower("mul.Tensor", "mul.Scalar")
def mul(self: Operand, other: Operand) -> Array:
    left, right = arithmetic(self, other)
    if kind_of(left.dtype) in "fc" and _is_mask(self) != _is_mask(other):
        # XLA replaces a product with a mask by a choice between the value and 0, but inf and NaN times 0 are NaN.
        mask, values = (self, right) if _is_mask(self) else (other, left)
        return jnp.where(cast(mask, bool), values, values * 0)
    return left * right


def _is_mask(x: Operand) -> bool:
    return isinstance(x, Array) and x.dtype == bool


@lower("sub.Tensor", "sub.Scalar")
def sub(self: Operand, other: Operand, alpha: Scalar = 1) -> Array:
    if any(kind_of(result_dtype(x)) == "b" for x in (self, other)):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    self, other = arithmetic(self, other)
    return self - other * cast(alpha, other.dtype)


@lower("rsub.Tensor", "rsub.Scalar")
def rsub(self: Array, other: Operand, alpha: Scalar = 1) -> Array:
    return sub(other, self, alpha)


@lower("_add_relu.Tensor", "_add_relu.Scalar")
def add_relu(self: Array, other: Operand, alpha: Scalar = 1) -> Array:
    return jnp.maximum(add(self, other, alpha), 0)


@lower("addcmul")
def addcmul(self: Operand, tensor1: Operand, tensor2: Operand, value: Scalar = 1) -> Array:
    self, tensor1, tensor2 = arithmetic(self, tensor1, tensor2)
    return self + cast(value, self.dtype) * tensor1 * tensor2


@lower("addcdiv")
def addcdiv(self: Operand, tensor1: Operand, tensor2: Operand, value: Scalar = 1) -> Array:
    self, tensor1, tensor2 = arithmetic(self, tensor1, tensor2)
    return self + cast(value, self.dtype) * tensor1 / tensor2


@lower("lerp.Tensor", "lerp.Scalar")
def lerp(self: Operand, end: Operand, weight: Operand) -> Array:
    self, end = arithmetic(self, end)
    weight = cast(weight, self.dtype)
    # Start from the nearer end, so that weights 0 and 1 are exact.
    near_self = abs(weight) < 0.5
    return jnp.where(near_self, self + weight * (end - self), end - (end - self) * (1 - weight))


# -- quotients -------------------------------------------------------------------------------------


@lower("div.Tensor_mode", "div.Scalar_mode")
def div_mode(self: Operand, other: Operand, rounding_mode: str | None) -> Array:
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
def floor_divide(self: Operand, other: Operand) -> Array:
    return _floor_divide(*arithmetic(self, other))


def _floor_divide(self: Array, other: Array) -> Array:
    quotient = jnp.floor_divide(self, other)
    if kind_of(self.dtype) == "i":
        return quotient
    return jnp.where(other == 0, self / other, quotient)


def _fmod(self: Array, other: Array) -> Array:
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


@lower("clamp")
def clamp(self: Operand, min: Operand | None = None, max: Operand | None = None) -> Array:
    return _clamp(bounds.NUMBERS, self, min, max)


@lower("clamp.Tensor")
def clamp_tensor(self: Operand, min: Operand | None = None, max: Operand | None = None) -> Array:
    return _clamp(bounds.TENSORS, self, min, max)


def _clamp(kind: bounds.Kind, self: Operand, min: Operand | None, max: Operand | None) -> Array:
    if min is not None and max is not None:
        return kind.between(*arithmetic(self, min, max))
    if min is not None:
        return kind.at_least(*arithmetic(self, min))
    if max is not None:
        return kind.at_most(*arithmetic(self, max))
    raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")


@lower("clamp_min")
def clamp_min(self: Array, min: Operand) -> Array:
    return clamp(self, min)


@lower("clamp_max")
def clamp_max(self: Array, max: Operand) -> Array:
    return clamp(self, None, max)


@lower("clamp_min.Tensor")
def clamp_min_tensor(self: Array, min: Operand) -> Array:
    return clamp_tensor(self, min)


@lower("clamp_max.Tensor")
def clamp_max_tensor(self: Array, max: Operand) -> Array:
    return clamp_tensor(self, None, max)


# -- powers ----------------------------------------------------------------------------------------

# Integer exponents up to this one are unrolled into products.
_MOST_UNROLLED = 16


@lower("pow.Tensor_Scalar", static=("exponent",))
def pow_number(self: Operand, exponent: complex) -> Array:
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
def pow(self: Operand, exponent: Operand) -> Array:
    self, exponent = arithmetic(self, exponent)
    result = power(self, exponent)
    if kind_of(self.dtype) != "i" or self.dtype.kind == "u":
        return result
    odd = jnp.where(exponent % 2 == 0, 1, self)
    return jnp.where(exponent < 0, jnp.where(abs(self) == 1, odd, 0), result)
