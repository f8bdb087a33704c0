"""Matrix functions, and products of vectors other than contractions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from .promote import promote, widen
from .registry import lower
from .types import Array, Operand

# The 1-norm up to which twenty terms of the exponential series are exact to rounding.
_SERIES_LIMIT = {"float32": 3.0, "float64": 1.0}


@lower("linalg_matrix_exp")
def matrix_exp(self: Array) -> Array:
    """Scale by a power of two, sum the Taylor series, and square repeatedly: only products of matrices."""
    if not self.size:
        return self
    (a,) = widen(self)
    return _exponential(a)


@jax.custom_vjp
def _exponential(a: Array) -> Array:
    norm = jnp.abs(a).sum(-2).max(-1)
    halvings = jnp.ceil(jnp.log2(norm / _SERIES_LIMIT[norm.dtype.name]))
    halvings = jnp.where(jnp.isfinite(halvings), jnp.maximum(halvings, 0), 0).astype(np.int32)
    scale = jnp.ldexp(jnp.ones_like(norm), -halvings)
    series = _exponential_series(a * scale[..., None, None].astype(a.dtype))

    def square(state: tuple[Array, Array]) -> tuple[Array, Array]:
        i, x = state
        return i + np.int32(1), jnp.where((i < halvings)[..., None, None], x @ x, x)

    last = halvings.max()
    return jax.lax.while_loop(lambda s: s[0] < last, square, (jnp.int32(0), series))[1]


def _pull_back(a: Array, grad: Array) -> tuple[Array]:
    """The gradient, as a block of the exponential of a block matrix.

    JAX cannot differentiate the loop of squarings, because their number is not static.
    """
    transposed = a.mT
    upper = jnp.concatenate([transposed, grad], -1)
    lower_half = jnp.concatenate([jnp.zeros_like(a), transposed], -1)
    n = a.shape[-1]
    return (_exponential(jnp.concatenate([upper, lower_half], -2))[..., :n, n:],)


_exponential.defvjp(lambda a: (_exponential(a), a), _pull_back)


def _exponential_series(a: Array) -> Array:
    """The sum of a^k / k! for k < 20, as a polynomial of degree 4 in a^4 (Paterson and Stockmeyer)."""
    squared = a @ a
    powers = (jnp.eye(a.shape[-1], dtype=a.dtype), a, squared, squared @ a)
    fourth = squared @ squared
    total = jnp.zeros_like(a)
    for start in range(16, -1, -4):
        block = sum(x / math.factorial(start + k) for k, x in enumerate(powers))
        total = total @ fourth + block
    return total


@lower("linalg_cross")
def cross(self: Operand, other: Operand, dim: int = -1) -> Array:
    self, other = jnp.broadcast_arrays(*promote(self, other))
    following = [jnp.roll(x, -1, dim) for x in (self, other)]
    # This expression has the third component first; the roll moves it to the end.
    return jnp.roll(self * following[1] - following[0] * other, -1, dim)


@lower("trace")
def trace(self: Array) -> Array:
    return jnp.trace(self)
