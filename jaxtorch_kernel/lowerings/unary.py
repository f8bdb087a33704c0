"""Functions of one operand, except predicates and special functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .elementwise import lower_arithmetic, lower_floating
from .nondifferentiable import magnitude, with_derivatives
from .types import Array


def _is_complex(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _sign(self: Array) -> Array:
    if self.dtype == bool or _is_complex(self):
        return self if self.dtype == bool else _direction(self)
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)


def _direction(z: Array) -> Array:
    """z / |z|, or 0 at 0, where the derivative is 0. `jnp.sign` has no derivative for complex numbers."""
    size = jnp.abs(jnp.where(z == 0, 1, z))
    return jnp.where(z == 0, 0, jnp.where(jnp.isinf(size), jnp.sign(z), z / size))


_sqrt = with_derivatives(lambda tangent, result, _: tangent / (2 * result), holomorphic=True)(
    jnp.sqrt
)


def exp2(self: Array) -> Array:
    """2 to a power, exact for integers. XLA's exp2 multiplies by log 2, which loses digits far from 0."""
    if _is_complex(self):
        return jnp.exp2(self)
    whole = jnp.clip(jnp.round(self), -2000, 2000)
    return jnp.ldexp(jnp.exp2(self - whole), whole.astype(jnp.int32))


def _reciprocal(self: Array) -> Array:
    return 1 / self


def _rsqrt(self: Array) -> Array:
    return 1 / jnp.sqrt(self)


lower_arithmetic(
    {
        "neg": jnp.negative,
        "abs": magnitude,
        "sign sgn": _sign,
        "floor": jnp.floor,
        "ceil": jnp.ceil,
        "trunc": jnp.trunc,
        "round": jnp.round,
        "relu": jax.nn.relu,  # its derivative at 0 is 0
    }
)

lower_floating(
    {
        "acos": jnp.arccos,
        "acosh": jnp.arccosh,
        "asin": jnp.arcsin,
        "asinh": jnp.arcsinh,
        "atan": jnp.arctan,
        "atanh": jnp.arctanh,
        "cos": jnp.cos,
        "cosh": jnp.cosh,
        "deg2rad": jnp.deg2rad,
        "exp": jnp.exp,
        "exp2": exp2,
        "expm1": jnp.expm1,
        "log": jnp.log,
        "log10": jnp.log10,
        "log1p": jnp.log1p,
        "log2": jnp.log2,
        "rad2deg": jnp.rad2deg,
        "reciprocal": _reciprocal,
        "rsqrt": _rsqrt,
        "sigmoid": lax.logistic,
        "sin": jnp.sin,
        "sinc": jnp.sinc,
        "sinh": jnp.sinh,
        "sqrt": _sqrt,
        "tan": jnp.tan,
        "tanh": jnp.tanh,
    }
)
