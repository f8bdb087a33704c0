"""Special functions that JAX has: gamma, error, zeta and modified Bessel functions, entropies."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.scipy import special
from jax.typing import DTypeLike

from .elementwise import floating, lower_floating, rounded
from .nondifferentiable import with_derivatives
from .promote import cast, default_dtype, kind_of
from .registry import lower
from .types import Array, Pair, Scalar


@with_derivatives(
    lambda tangent, _, x, y: tangent * jnp.where((x == 0) & (y <= 0), 0, jnp.log(y)),
    lambda tangent, _, x, y: tangent * x / y,
)
def _xlogy(self: Array, other: Array) -> Array:
    product = self * jnp.log(jnp.where(self == 0, 1, other))
    return jnp.where(jnp.isnan(other), other, product)


@with_derivatives(
    lambda tangent, _, x, y: tangent * jnp.where((x == 0) & (y <= -1), 0, jnp.log1p(y)),
    lambda tangent, _, x, y: tangent * x / (y + 1),
)
def _xlog1py(self: Array, other: Array) -> Array:
    product = self * jnp.log1p(jnp.where(self == 0, 0, other))
    return jnp.where(jnp.isnan(other), other, product)


@with_derivatives(lambda tangent, _, x: tangent * (-jnp.log(x) - 1))
def _entr(self: Array) -> Array:
    return jnp.where(self < 0, -jnp.inf, -_xlogy(self, self))


@with_derivatives(lambda tangent, _, x: tangent * _trigamma(x))
def _digamma(self: Array) -> Array:
    return jnp.where(self == 0, -jnp.copysign(jnp.inf, self), lax.digamma(self))


@with_derivatives(None, lambda tangent, _, x, q: tangent * -x * _zeta(x + 1, q))
def _zeta(self: Array, other: Array) -> Array:
    self, other = jnp.broadcast_arrays(self, other)
    return _hurwitz(self, other, lambda q: q**-self)


def _hurwitz(self: Array, other: Array, power: Callable[[Array], Array]) -> Array:
    """Hurwitz's zeta function by JAX's, which is right for arguments above 0 and exact to the last digits from 1 on.

    So smaller ones are first raised by 1 until they are not. Each step adds a term of the sum, which is `power` of q.
    """

    def below(q: Array) -> Array:
        return (q < 1) & ((q > 0) | (q != jnp.floor(q)))

    def move(state: tuple[Array, Array]) -> tuple[Array, Array]:
        q, total = state
        return jnp.where(below(q), q + 1, q), total + jnp.where(below(q), power(q), 0)

    start = (other, jnp.zeros_like(other))
    q, total = lax.while_loop(lambda state: jnp.any(below(state[0])), move, start)
    pole = (other <= 0) & (other == jnp.floor(other)) & (self > 1)
    value = jnp.where(pole, jnp.inf, total + special.zeta(self, q))
    return jnp.where(self < 1, jnp.nan, value)


def _igamma(self: Array, other: Array) -> Array:
    self, other = jnp.broadcast_arrays(self, other)
    return jnp.where(jnp.isinf(self) & (other < jnp.inf), 0, lax.igamma(self, other))


def _igammac(self: Array, other: Array) -> Array:
    self, other = jnp.broadcast_arrays(self, other)
    return jnp.where(jnp.isinf(self) & (other < jnp.inf), 1, lax.igammac(self, other))


@with_derivatives(
    lambda tangent, result, _: tangent * (math.sqrt(math.pi) / 2) * jnp.exp(result**2)
)
def _erfinv(self: Array) -> Array:
    """XLA's erf_inv, which is off by some ulps, corrected by a Newton step (on erfc where erf is nearly 1)."""
    y = jnp.abs(self)
    x = lax.erf_inv(y)
    residual = jnp.where(y > 0.5, 1 - y - lax.erfc(x), lax.erf(x) - y)
    x = jnp.where(y < 1, x - residual * (math.sqrt(math.pi) / 2) * jnp.exp(x * x), x)
    return jnp.copysign(x, self)


def _spherical_bessel_j0(x: Array) -> Array:
    return jnp.where(jnp.isinf(x), 0, jnp.sinc(x / math.pi))


@with_derivatives(lambda tangent, _, x: tangent * special.i1(x))
def i0(x: Array) -> Array:
    """JAX's i0 with the derivative i1. JAX's own derivative at 0 would be 1, because it differentiates |x|."""
    return special.i0(x)


_lgamma = with_derivatives(lambda tangent, _, x: tangent * _digamma(x))(lax.lgamma)
_ndtri = with_derivatives(
    lambda tangent, result, _: tangent * math.sqrt(2 * math.pi) * jnp.exp(result**2 / 2)
)(special.ndtri)


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
if hasattr(special, "erfcx"):  # new in jax 0.10.1; without it, the operator runs on the CPU
    lower_floating({"special_erfcx": special.erfcx})


@with_derivatives(lambda tangent, _, x: tangent * _polygamma(2, x))
def _trigamma(x: Array) -> Array:
    """The trigamma function, by reflection below 1/2. The distance of x to its nearest integer is exact: the sine of it
    keeps the last digits near the poles."""
    low = x < 0.5
    upper = special.zeta(jnp.full_like(x, 2), jnp.where(low, 1 - x, x))
    return jnp.where(low, (jnp.pi / jnp.sin(jnp.pi * (x - jnp.round(x)))) ** 2 - upper, upper)


@lower("polygamma")
def polygamma(n: int, self: Array) -> Array:
    return _polygamma(n, *floating(self))


def _polygamma(n: int, x: Array) -> Array:
    if n == 0:
        return _digamma(x)
    if n == 1:
        return _trigamma(x)

    @with_derivatives(lambda tangent, _, x: tangent * _polygamma(n + 1, x))
    def higher(x: Array) -> Array:
        order = jnp.asarray(n + 1, x.dtype)
        sign = 1 if n % 2 else -1
        # A power with an integer exponent: near a pole, where one term is all of the sum, it keeps the last digits.
        zeta = _hurwitz(jnp.full_like(x, n + 1), x, lambda q: lax.integer_pow(q, -(n + 1)))
        return (
            sign * math.factorial(n) * zeta if n < 30 else sign * jnp.exp(lax.lgamma(order)) * zeta
        )

    return higher(x)


@lower("mvlgamma")
def mvlgamma(self: Array, p: int) -> Array:
    (self,) = floating(self)
    terms = (_lgamma(self - j / 2) for j in range(p))
    return sum(terms, jnp.asarray(p * (p - 1) / 4 * math.log(math.pi), self.dtype))


def _bounds(eps: Scalar | None, dtype: DTypeLike) -> Pair:
    """The bounds to which `logit` clamps its argument: infinite if eps is negative or None."""
    low = cast(-1.0 if eps is None else eps, dtype)
    unbounded = low < 0
    return jnp.where(unbounded, -jnp.inf, low), jnp.where(unbounded, jnp.inf, 1 - low)


@lower("logit")
def logit(self: Array, eps: Scalar | None = None) -> Array:
    dtype = self.dtype if kind_of(self.dtype) == "f" else default_dtype()
    (self,) = floating(self)

    @with_derivatives(lambda tangent, _, x, low, high: _logit_derivative(tangent, x, low, high))
    def bounded(x: Array, low: Array, high: Array) -> Array:
        x = jnp.clip(x, low, high)
        # torch rounds half types after each step of this operator.
        return jnp.log(rounded(x / rounded(1 - x, dtype), dtype))

    return bounded(self, *_bounds(eps, self.dtype))


def _logit_derivative(tangent: Array, x: Array, low: Array, high: Array) -> Array:
    """Infinite at 0 and 1, NaN beyond them, 0 where the argument was clamped."""
    inside = (x > 0) & (x < 1)
    derivative = jnp.where(
        inside, 1 / (x * (1 - x)), jnp.where((x < 0) | (x > 1), jnp.nan, jnp.inf)
    )
    return tangent * jnp.where((x < low) | (x > high), 0, derivative)


@lower("logit_backward")
def logit_backward(grad_output: Array, self: Array, eps: Scalar | None = None) -> Array:
    grad_output, self = floating(grad_output, self)
    return _logit_derivative(grad_output, self, *_bounds(eps, self.dtype))
