"""Special functions that JAX has: gamma, error, zeta and modified Bessel functions, entropies."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from .elementwise import floating, lower_floating, rounded
from .nondifferentiable import sloped
from .promote import cast, default_dtype, kind_of
from .registry import lower


@sloped(
    lambda change, _, x, y: change * jnp.where((x == 0) & (y <= 0), 0, jnp.log(y)),
    lambda change, _, x, y: change * x / y,
)
def _xlogy(self: jax.Array, other: jax.Array) -> jax.Array:
    product = self * jnp.log(jnp.where(self == 0, 1, other))
    return jnp.where(jnp.isnan(other), other, product)


@sloped(
    lambda change, _, x, y: change * jnp.where((x == 0) & (y <= -1), 0, jnp.log1p(y)),
    lambda change, _, x, y: change * x / (y + 1),
)
def _xlog1py(self: jax.Array, other: jax.Array) -> jax.Array:
    product = self * jnp.log1p(jnp.where(self == 0, 0, other))
    return jnp.where(jnp.isnan(other), other, product)


@sloped(lambda change, _, x: change * (-jnp.log(x) - 1))
def _entr(self: jax.Array) -> jax.Array:
    return jnp.where(self < 0, -jnp.inf, -_xlogy(self, self))


@sloped(lambda change, _, x: change * _trigamma(x))
def _digamma(self: jax.Array) -> jax.Array:
    return jnp.where(self == 0, -jnp.copysign(jnp.inf, self), lax.digamma(self))


@sloped(None, lambda change, _, x, q: change * -x * _zeta(x + 1, q))
def _zeta(self: jax.Array, other: jax.Array) -> jax.Array:
    """Hurwitz's zeta function. JAX's is right for positive `other`: negative ones are moved up by ones."""
    self, other = jnp.broadcast_arrays(self, other)

    def negative(q: jax.Array) -> jax.Array:
        return (q < 0) & (q != jnp.floor(q))

    def move(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q, total = state
        here = negative(q)
        return jnp.where(here, q + 1, q), total + jnp.where(here, q**-self, 0)

    start = (other, jnp.zeros_like(other))
    q, total = lax.while_loop(lambda state: jnp.any(negative(state[0])), move, start)
    pole = (other <= 0) & (other == jnp.floor(other)) & (self > 1)
    value = jnp.where(pole, jnp.inf, total + special.zeta(self, q))
    return jnp.where(self < 1, jnp.nan, value)


def _igamma(self: jax.Array, other: jax.Array) -> jax.Array:
    self, other = jnp.broadcast_arrays(self, other)
    return jnp.where(jnp.isinf(self) & (other < jnp.inf), 0, lax.igamma(self, other))


def _igammac(self: jax.Array, other: jax.Array) -> jax.Array:
    self, other = jnp.broadcast_arrays(self, other)
    return jnp.where(jnp.isinf(self) & (other < jnp.inf), 1, lax.igammac(self, other))


@sloped(lambda change, result, _: change * (math.sqrt(math.pi) / 2) * jnp.exp(result**2))
def _erfinv(self: jax.Array) -> jax.Array:
    """XLA's is off by some ulps: a Newton step, on erfc where erf is nearly 1."""
    y = jnp.abs(self)
    x = lax.erf_inv(y)
    residual = jnp.where(y > 0.5, 1 - y - lax.erfc(x), lax.erf(x) - y)
    x = jnp.where(y < 1, x - residual * (math.sqrt(math.pi) / 2) * jnp.exp(x * x), x)
    return jnp.copysign(x, self)


def _spherical_bessel_j0(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isinf(x), 0, jnp.sinc(x / math.pi))


@sloped(lambda change, _, x: change * special.i1(x))
def i0(x: Any) -> jax.Array:
    """JAX's own, whose slope by JAX is that of |x|, and 1 at 0."""
    return special.i0(x)


_lgamma = sloped(lambda change, _, x: change * _digamma(x))(lax.lgamma)
_ndtri = sloped(lambda change, result, _: change * math.sqrt(2 * math.pi) * jnp.exp(result**2 / 2))(
    special.ndtri
)


lower_floating(
    {
        "digamma": _digamma,
        "erf": lax.erf,
        "erfc": lax.erfc,
        "erfinv": _erfinv,
        "i0 special_modified_bessel_i0": i0,
        "igamma": _igamma,
        "igammac": _igammac,
        "lgamma": _lgamma,
        "special_entr": _entr,
        "special_i0e": special.i0e,
        "special_i1 special_modified_bessel_i1": special.i1,
        "special_i1e": special.i1e,
        "special_log_ndtr": special.log_ndtr,
        "special_ndtri": _ndtri,
        "special_spherical_bessel_j0": _spherical_bessel_j0,
        "special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar": _xlog1py,
        "special_zeta special_zeta.self_scalar special_zeta.other_scalar": _zeta,
        "xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other": _xlogy,
    }
)
if hasattr(special, "erfcx"):  # since jax 0.10.1; with an older one torch's CPU computes it
    lower_floating({"special_erfcx": special.erfcx})


@sloped(lambda change, _, x: change * _polygamma(2, x))
def _trigamma(x: jax.Array) -> jax.Array:
    """By reflection below 1/2, as torch computes it: near the poles the digits depend on it."""
    low = x < 0.5
    upper = special.zeta(jnp.full_like(x, 2), jnp.where(low, 1 - x, x))
    return jnp.where(low, (jnp.pi / jnp.sin(jnp.pi * x)) ** 2 - upper, upper)


@lower("polygamma")
def polygamma(n: int, self: Any) -> jax.Array:
    return _polygamma(n, *floating(self))


def _polygamma(n: int, x: jax.Array) -> jax.Array:
    if n == 0:
        return _digamma(x)
    if n == 1:
        return _trigamma(x)

    @sloped(lambda change, _, x: change * _polygamma(n + 1, x))
    def higher(x: jax.Array) -> jax.Array:
        order = jnp.asarray(n + 1, x.dtype)
        sign = 1 if n % 2 else -1
        return sign * jnp.exp(lax.lgamma(order)) * _zeta(order, x)

    return higher(x)


@lower("mvlgamma")
def mvlgamma(self: Any, p: int) -> jax.Array:
    (self,) = floating(self)
    terms = (_lgamma(self - j / 2) for j in range(p))
    return sum(terms, jnp.asarray(p * (p - 1) / 4 * math.log(math.pi), self.dtype))


def _bounds(eps: Any, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Where `logit` clamps its argument: nowhere for a negative eps, and for none."""
    eps = cast(-1.0 if eps is None else eps, dtype)
    off = eps < 0
    return jnp.where(off, -jnp.inf, eps), jnp.where(off, jnp.inf, 1 - eps)


@lower("logit")
def logit(self: Any, eps: Any = None) -> jax.Array:
    dtype = self.dtype if kind_of(self.dtype) == "f" else default_dtype()
    (self,) = floating(self)

    @sloped(lambda change, _, x, low, high: _logit_slope(change, x, low, high))
    def bounded(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        x = jnp.clip(x, low, high)
        # torch rounds half types at each step of this one.
        return jnp.log(rounded(x / rounded(1 - x, dtype), dtype))

    return bounded(self, *_bounds(eps, self.dtype))


def _logit_slope(change: Any, x: Any, low: Any, high: Any) -> jax.Array:
    """Infinite at 0 and 1, NaN beyond them, 0 where the argument was clamped."""
    inside = (x > 0) & (x < 1)
    slope = jnp.where(inside, 1 / (x * (1 - x)), jnp.where((x < 0) | (x > 1), jnp.nan, jnp.inf))
    return change * jnp.where((x < low) | (x > high), 0, slope)


@lower("logit_backward")
def logit_backward(grad_output: Any, self: Any, eps: Any = None) -> jax.Array:
    grad_output, self = floating(grad_output, self)
    return _logit_slope(grad_output, self, *_bounds(eps, self.dtype))
