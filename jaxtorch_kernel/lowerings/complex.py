"""Construction and decomposition of complex numbers."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from .elementwise import floating, lower_arithmetic
from .nondifferentiable import arctan2
from .promote import promote
from .registry import lower
from .types import Array, Operand


@lower("complex")
def complex(real: Operand, imag: Operand) -> Array:
    return lax.complex(*jnp.broadcast_arrays(*promote(real, imag)))


@lower("polar")
def polar(abs: Operand, angle: Operand) -> Array:
    abs, angle = promote(abs, angle)
    return complex(abs * jnp.cos(angle), abs * jnp.sin(angle))


@lower("angle")
def angle(self: Operand) -> Array:
    (self,) = floating(self)
    if jnp.iscomplexobj(self):
        return arctan2(self.imag, self.real)
    return jnp.where(jnp.isnan(self), self, jnp.where(self < 0, jnp.pi, 0.0))


lower_arithmetic({"_conj_physical conj_physical": jnp.conj})
