"""Parts and neighbours of floating-point numbers: fractions, exponents, rounding to decimals, replacement of NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .elementwise import arithmetic, floating, lower_arithmetic
from .promote import cast, kind_of, promote
from .registry import lower
from .types import Array, Operand
from .unary import exp2


def _frac(self: Array) -> Array:
    return self - jnp.trunc(self)


def _heaviside(self: Array, values: Array) -> Array:
    return jnp.where(self == 0, values, (self > 0).astype(self.dtype))


lower_arithmetic({"frac": _frac, "heaviside": _heaviside})


@lower("round.decimals")
def round_decimals(self: Array, decimals: int) -> Array:
    if kind_of(self.dtype) == "i":
        return self
    (self,) = arithmetic(self)
    scale = 10 ** abs(decimals)
    if decimals < 0:
        return jnp.round(self / scale) * scale
    return jnp.round(self * scale) / scale


@lower("frexp.Tensor")
def frexp(self: Array) -> tuple[Array, Array]:
    mantissa, exponent = jnp.frexp(*arithmetic(self))
    return mantissa, exponent


@lower("ldexp.Tensor")
def ldexp(self: Operand, other: Operand) -> Array:
    self, power = floating(self, exp2(*floating(other)))
    return self * power


@lower("nextafter")
def nextafter(self: Operand, other: Operand) -> Array:
    return _next_after(*promote(self, other))


@jax.custom_jvp
def _next_after(x: Array, towards: Array) -> Array:
    return jnp.nextafter(x, towards)


_next_after.defjvps(lambda tangent, _, x, towards: tangent * (x != towards), None)


@lower("nan_to_num")
def nan_to_num(
    self: Array, nan: Operand | None, posinf: Operand | None, neginf: Operand | None
) -> Array:
    if kind_of(self.dtype) in "bi":
        return self
    if kind_of(self.dtype) == "c":
        parts = (nan_to_num(part, nan, posinf, neginf) for part in (self.real, self.imag))
        return jax.lax.complex(*parts)
    limits = jnp.finfo(self.dtype)
    numbers = zip((nan, posinf, neginf), (0.0, float(limits.max), float(limits.min)), strict=True)
    nan, posinf, neginf = (cast(d if x is None else x, self.dtype) for x, d in numbers)
    # All conditions are on `self`: what replaces NaN may be infinite.
    result = jnp.where(jnp.isneginf(self), neginf, self)
    result = jnp.where(jnp.isposinf(self), posinf, result)
    return jnp.where(jnp.isnan(self), nan, result)
