"""Functions with a pole or a nondifferentiable point: captured code uses torch's derivative there instead of JAX's.

torch defines the derivative by explicit formulas (`derivatives.yaml`, `FunctionsManual.cpp`), also where two pieces
meet, where operands are equal, and where the limit does not exist. JAX differentiates the computation of the value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from .types import Array

Function = Callable[..., Array]


def sloped(*slopes: Function | None, holomorphic: bool = False) -> Callable[[Function], Function]:
    """An elementwise function of real arrays with torch's derivatives; of complex ones with JAX's.

    Args:
        slopes: for each operand a function of (its change, the result, *operands): the change of the result, linear
            in its change. None: 0. What is not finite where it is not wanted is masked before it meets the change,
            for the transpose multiplies it by a gradient of 0.
        holomorphic: the slopes are those of complex arrays, too.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> square = sloped(lambda change, result, x: change * 7)(lambda x: x * x)
        >>> float(jax.grad(square)(1.0))
        7.0
    """

    def decorate(function: Function) -> Function:
        ruled: Any = jax.custom_jvp(function)

        def rule(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
            result = ruled(*primals)
            total = jnp.zeros_like(result)
            for slope, change in zip(slopes, tangents, strict=False):
                # An operand that does not change: zero times an infinite slope would be NaN.
                if slope is not None and not isinstance(change, SymbolicZero):
                    total += jnp.asarray(slope(change, result, *primals), total.dtype)
            return result, total

        ruled.defjvp(rule, symbolic_zeros=True)

        @functools.wraps(function)
        def differentiable(*operands: Any) -> Array:
            plain = not holomorphic and any(map(jnp.iscomplexobj, operands))
            return (function if plain else ruled)(*operands)

        return differentiable

    return decorate


@sloped(lambda change, _, x: jnp.sign(x) * change)
def magnitude(x: Array) -> Array:
    """|x|, whose slope at 0 is 0."""
    return jnp.abs(x)


# -- bounds ----------------------------------------------------------------------------------------------------------


@sloped(
    lambda change, _, x, low: jnp.where(x >= low, change, 0),
    lambda change, _, x, low: jnp.where(x < low, change, 0),
)
def at_least(x: Array, low: Array) -> Array:
    """max(x, low), NaN where either is; at the bound the slope is x's."""
    return jnp.where((x < low) | (low != low), low, x)


@sloped(
    lambda change, _, x, high: jnp.where(x <= high, change, 0),
    lambda change, _, x, high: jnp.where(x > high, change, 0),
)
def at_most(x: Array, high: Array) -> Array:
    """min(x, high), likewise."""
    return jnp.where((x > high) | (high != high), high, x)


@sloped(
    lambda change, _, x, low, high: jnp.where((x >= low) & (x <= high), change, 0),
    lambda change, _, x, low, high: jnp.where((low < high) & (x < low), change, 0),
    lambda change, _, x, low, high: jnp.where((x > high) | (high < low), change, 0),
)
def between(x: Array, low: Array, high: Array) -> Array:
    """`at_most(at_least(x, low), high)`; where the bounds meet, only x beyond them passes the slope on."""
    return at_most(at_least(x, low), high)


# -- the larger and the smaller --------------------------------------------------------------------------------------


def _shared(change: Array, lost: Array, equal: Array) -> Array:
    """A half each where both are equal."""
    return jnp.where(lost, 0, jnp.where(equal, change / 2, change))


maximum = sloped(
    lambda change, _, x, y: _shared(change, x < y, x == y),
    lambda change, _, x, y: _shared(change, x > y, x == y),
)(jnp.maximum)
minimum = sloped(
    lambda change, _, x, y: _shared(change, x > y, x == y),
    lambda change, _, x, y: _shared(change, x < y, x == y),
)(jnp.minimum)
fmax = sloped(
    lambda change, _, x, y: jnp.where((x >= y) | jnp.isnan(y), change, 0),
    lambda change, _, x, y: jnp.where((x >= y) | jnp.isnan(y), 0, change),
)(jnp.fmax)
fmin = sloped(
    lambda change, _, x, y: jnp.where((x <= y) | jnp.isnan(y), change, 0),
    lambda change, _, x, y: jnp.where((x <= y) | jnp.isnan(y), 0, change),
)(jnp.fmin)


# -- of two operands -------------------------------------------------------------------------------------------------

hypot = sloped(
    lambda change, result, x, y: change * (x / result),
    lambda change, result, x, y: change * (y / result),
)(jnp.hypot)


def _over_squares(part: Array, x: Array, y: Array) -> Array:
    return jnp.where((x == 0) & (y == 0), 0, part / (x * x + y * y))


arctan2 = sloped(
    lambda change, _, x, y: change * _over_squares(y, x, y),
    lambda change, _, x, y: change * _over_squares(-x, x, y),
)(jnp.arctan2)
logaddexp = sloped(
    lambda change, _, x, y: change / (1 + jnp.exp(y - x)),
    lambda change, _, x, y: change / (1 + jnp.exp(x - y)),
)(jnp.logaddexp)
logaddexp2 = sloped(
    lambda change, _, x, y: change / (1 + jnp.exp2(y - x)),
    lambda change, _, x, y: change / (1 + jnp.exp2(x - y)),
)(jnp.logaddexp2)
copysign = sloped(lambda change, result, x, y: change * jnp.where(x == 0, 0, result / x), None)(
    jnp.copysign
)


def _exponent_slope(change: Array, result: Array, base: Array, exponent: Array) -> Array:
    return change * jnp.where((base == 0) & (exponent >= 0), 0, result * jnp.log(base))


def _base_slope(change: Array, _: Array, base: Array, exponent: Array) -> Array:
    return change * jnp.where(exponent == 0, 0, exponent * power(base, exponent - 1))


power = sloped(_base_slope, _exponent_slope)(jnp.power)
inverse_root = sloped(lambda change, _, x: change * (-0.5 * power(x, jnp.asarray(-1.5, x.dtype))))(
    lambda x: 1 / jnp.sqrt(x)
)


# -- of all elements along some axes ---------------------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def extreme(x: Array, reduce: Function, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The value that `reduce` picks; all that equal it share the slope. NaN equals nothing, and has the slope NaN."""
    return reduce(x, axes, keepdims=keepdims)


@extreme.defjvp
def _extreme_slope(
    reduce: Function, axes: tuple[int, ...], keepdims: bool, primals: Array, tangents: Array
) -> tuple[Array, Array]:
    (x,), (change,) = primals, tangents
    result = extreme(x, reduce, axes, True)
    equal = x == result
    # Times zero, not zero: divided by a count of 0, NaN. XLA takes a product with a mask for zero.
    share = jnp.where(equal, change, change * 0) / jnp.sum(equal, axes, keepdims=True)
    slope = jnp.sum(share, axes, keepdims=keepdims).astype(result.dtype)
    return (result if keepdims else result.squeeze(axes)), slope


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def picked(x: Array, pick: Function) -> Array:
    """The element that `pick` picks of all; those that equal it (NaN equals NaN here) share the slope."""
    return pick(x)


@picked.defjvp
def _picked_slope(pick: Function, primals: Array, tangents: Array) -> tuple[Array, Array]:
    (x,), (change,) = primals, tangents
    result = picked(x, pick)
    equal = jnp.where(jnp.isnan(result), jnp.isnan(x), x == result)
    return result, jnp.sum(jnp.where(equal, change, 0)) / jnp.sum(equal).astype(change.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def mean_square(x: Array, freedom: Array, axes: tuple[int, ...]) -> Array:
    """The squares of real deviations from the mean, added up (the axes are kept) and divided by `freedom`."""
    mean = jnp.sum(x, axes, keepdims=True) / np.asarray(_count(x, axes), x.dtype)
    return jnp.sum(jnp.square(x - mean), axes, keepdims=True) / freedom


@mean_square.defjvp
def _mean_square_slope(
    axes: tuple[int, ...], primals: Array, tangents: Array
) -> tuple[Array, Array]:
    (x, freedom), (change, _) = primals, tangents
    mean = jnp.sum(x, axes, keepdims=True) / np.asarray(_count(x, axes), x.dtype)
    slope = jnp.sum(2 / freedom * (x - mean) * change, axes, keepdims=True)
    return mean_square(x, freedom, axes), slope


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
