"""Orthogonal polynomials, computed by their recurrences in the degree.

The degree is an elementwise operand, so one loop runs to the highest degree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import lax

from .elementwise import lower_floating
from .types import Array

# (k, x, p of degree k - 1, p of degree k) -> p of degree k + 1
Step = Callable[[Array, Array, Array, Array], Array]
# k, p of degree k - 1, p of degree k, and the result so far
State = tuple[Array, Array, Array, Array]


@dataclass(frozen=True)
class Family:
    """A family of polynomials, in which p of degree 0 is 1."""

    first: Callable[[Array], Array]
    step: Step
    shifted: bool = False  # defined on (0, 1) instead of (-1, 1)


def _chebyshev(k: Array, x: Array, before: Array, p: Array) -> Array:
    return 2 * x * p - before


def _hermite_h(k: Array, x: Array, before: Array, p: Array) -> Array:
    return 2 * (x * p - k * before)


def _hermite_he(k: Array, x: Array, before: Array, p: Array) -> Array:
    return x * p - k * before


def _laguerre(k: Array, x: Array, before: Array, p: Array) -> Array:
    return ((2 * k + 1 - x) * p - k * before) / (k + 1)


def _legendre(k: Array, x: Array, before: Array, p: Array) -> Array:
    return ((2 * k + 1) * x * p - k * before) / (k + 1)


_CHEBYSHEV = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}

_FAMILIES = {
    "hermite_polynomial_h": Family(lambda x: 2 * x, _hermite_h),
    "hermite_polynomial_he": Family(lambda x: x, _hermite_he),
    "laguerre_polynomial_l": Family(lambda x: 1 - x, _laguerre),
    "legendre_polynomial_p": Family(lambda x: x, _legendre),
}
for _kind, _first in _CHEBYSHEV.items():
    _FAMILIES[f"chebyshev_polynomial_{_kind}"] = Family(_first, _chebyshev)
    _FAMILIES[f"shifted_chebyshev_polynomial_{_kind}"] = Family(_first, _chebyshev, shifted=True)


def _evaluate(family: Family, x: Array, n: Array) -> Array:
    x, n = jnp.broadcast_arrays(x, jnp.trunc(n))
    if family.shifted:
        x = 2 * x - 1

    def more(state: State) -> Array:
        k, *_ = state
        return k < jnp.max(n, initial=0)

    def advance(state: State) -> State:
        k, before, p, result = state
        before, p = p, family.step(k, x, before, p)
        return k + 1, before, p, jnp.where(n == k + 1, p, result)

    one = jnp.ones_like(x)
    first = family.first(x)
    result = jnp.where(n == 0, one, jnp.where(n == 1, first, jnp.zeros_like(x)))
    start = (jnp.ones((), x.dtype), one, first, result)
    return lax.while_loop(more, advance, start)[3]


lower_floating(
    {
        f"special_{name} special_{name}.n_scalar special_{name}.x_scalar": partial(
            _evaluate, family
        )
        for name, family in _FAMILIES.items()
    }
)
