"""Bessel functions of orders 0 and 1 (J, Y, K) and the Airy function, which JAX lacks.

Small arguments use power series, and all others one quadrature. With z = x,

    exp(z) K0(z) = integral over u > 0 of 2 exp(-u²) / sqrt(2z + u²) du

(DLMF 10.32.9 with u = sqrt(2z) sinh(t/2)), and with the factor 1 + u²/z in the integrand it gives K1. At z = -ix the
same integral is the Hankel function J + iY, up to a factor. The trapezoidal rule converges exponentially on such
integrands: 20 nodes give 14 digits if |z| is at least 3 (for real z, at least 1.5). The Airy function has an integral
of the same kind (DLMF 9.5.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np

from .elementwise import lower_floating
from .types import Array

_STEP = 0.33
_NODES = _STEP * np.arange(20)
# The trapezoidal rule on (0, inf) for exp(-u²) times an even function of u.
_WEIGHTS = _STEP * np.exp(-(_NODES**2)) * np.where(_NODES == 0, 0.5, 1)
_SERIES_END = 3.0
_K_SERIES_END = 1.5

_TERMS = range(20)
_FACTORIAL = [math.factorial(k) for k in range(21)]
_HARMONIC = [0.0, *accumulate(1 / k for k in range(1, 21))]
_ORDER_0 = [1 / _FACTORIAL[k] ** 2 for k in _TERMS]
_ORDER_1 = [1 / (_FACTORIAL[k] * _FACTORIAL[k + 1]) for k in _TERMS]
_LOG_0 = [c * _HARMONIC[k] for k, c in enumerate(_ORDER_0)]
_LOG_1 = [c * (_HARMONIC[k] + _HARMONIC[k + 1]) / 2 for k, c in enumerate(_ORDER_1)]


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """The polynomial with these coefficients, the lowest degree first."""
    value = jnp.zeros_like(x)
    for c in reversed(coefficients):
        value = value * x + c
    return value


def _series(x: Array, order: int, sign: int) -> tuple[Array, Array]:
    """The first and second solution, up to factors: I and K for sign 1, J and Y for sign -1."""
    t = sign * x * x / 4
    log = jnp.log(x / 2) + np.euler_gamma
    if order == 0:
        first = _polynomial(t, _ORDER_0)
        return first, log * first - _polynomial(t, _LOG_0)
    first = x / 2 * _polynomial(t, _ORDER_1)
    second = sign / x + log * first - x / 2 * _polynomial(t, _LOG_1)
    return first, jnp.where(x == 0, sign * jnp.inf, second)


def _scaled_k(z: Array, order: int) -> Array:
    """exp(z) K(z), accurate only if z is not small."""
    total = jnp.zeros_like(z)
    for u, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        factor = 1 + u * u / z if order else 1
        total += 2 * weight * factor / jnp.sqrt(2 * z + u * u)
    return total


def _hankel(x: Array, order: int) -> Array:
    """J(x) + iY(x) for x >= 3."""
    z = jax.lax.complex(jnp.zeros_like(x), -x)
    return (-2 / math.pi if order else -2j / math.pi) * jnp.exp(-z) * _scaled_k(z, order)


def _bessel_j(x: Array, order: int) -> Array:
    size = jnp.abs(x)
    small, _ = _series(jnp.minimum(size, _SERIES_END), order, -1)
    large = _hankel(jnp.maximum(size, _SERIES_END), order).real
    value = jnp.where(size < _SERIES_END, small, large)
    return jnp.where(x < 0, -value, value) if order else value


def _bessel_y(x: Array, order: int) -> Array:
    _, small = _series(jnp.minimum(x, _SERIES_END), order, -1)
    large = _hankel(jnp.maximum(x, _SERIES_END), order).imag
    return jnp.where(x < _SERIES_END, 2 / math.pi * small, large)


def _bessel_k(x: Array, order: int, scaled: bool) -> Array:
    _, second = _series(jnp.minimum(x, _K_SERIES_END), order, 1)
    small = second if order else -second
    large = _scaled_k(jnp.maximum(x, _K_SERIES_END), order)
    if scaled:
        small = small * jnp.exp(x)
    else:
        large = large * jnp.exp(-x)
    return jnp.where(x < _K_SERIES_END, small, large)


# -- Airy ------------------------------------------------------------------------------------------

_AIRY_SERIES_END = 2.0
# Ai(0) and -Ai'(0), the factors of the two series.
_AIRY_0 = 3 ** (-2 / 3) / math.gamma(2 / 3)
_AIRY_1 = 3 ** (-1 / 3) / math.gamma(1 / 3)
# Weights for negative arguments: the path of integration is rotated.
_TURNED = _STEP * np.exp(-(_NODES**2) * np.exp(1j * np.pi / 6)) * np.where(_NODES == 0, 0.5, 1)


def _airy_coefficients(start: int) -> list[float]:
    """The coefficients of x³ in x^start times a power series in x³."""
    coefficients = [1.0]
    for k in range(1, 15):
        degree = 3 * k + start
        coefficients.append(coefficients[-1] / (degree * (degree - 1)))
    return coefficients


def _airy_ai(x: Array) -> Array:
    size = jnp.maximum(jnp.abs(x), _AIRY_SERIES_END)
    root = jnp.sqrt(size)
    zeta = 2 / 3 * size * root
    positive = real = imag = jnp.zeros_like(x)
    for u, weight, turned in zip(_NODES.tolist(), _WEIGHTS.tolist(), _TURNED.tolist(), strict=True):
        wave = jnp.cos(2 * u**3 / (9 * zeta) * jnp.sqrt(root) ** 3)
        positive += weight * wave
        real += turned.real * wave
        imag += turned.imag * wave
    phase = math.pi / 3 - zeta
    decaying = jnp.exp(-zeta) * positive
    waving = 2 * (jnp.cos(phase) * real - jnp.sin(phase) * imag)
    large = jnp.where(x > 0, decaying, waving) / (math.pi * jnp.sqrt(root))
    inner = jnp.clip(x, -_AIRY_SERIES_END, _AIRY_SERIES_END)
    cube = inner**3
    small = _AIRY_0 * _polynomial(cube, _airy_coefficients(0))
    small -= _AIRY_1 * inner * _polynomial(cube, _airy_coefficients(1))
    return jnp.where(jnp.abs(x) < _AIRY_SERIES_END, small, large)


lower_floating(
    {
        "special_airy_ai": _airy_ai,
        "special_bessel_j0": lambda x: _bessel_j(x, 0),
        "special_bessel_j1": lambda x: _bessel_j(x, 1),
        "special_bessel_y0": lambda x: _bessel_y(x, 0),
        "special_bessel_y1": lambda x: _bessel_y(x, 1),
        "special_modified_bessel_k0": lambda x: _bessel_k(x, 0, False),
        "special_modified_bessel_k1": lambda x: _bessel_k(x, 1, False),
        "special_scaled_modified_bessel_k0": lambda x: _bessel_k(x, 0, True),
        "special_scaled_modified_bessel_k1": lambda x: _bessel_k(x, 1, True),
    }
)
