"""Functions with a pole or a nondifferentiable point, where captured code uses torch's derivative instead of JAX's.

torch defines derivatives by explicit formulas (`derivatives.yaml`, `FunctionsManual.cpp`), including where two pieces
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

from .types import Array, Pair

Function = Callable[..., Array]


def with_derivatives(
    *derivatives: Function | None, holomorphic: bool = False
) -> Callable[[Function], Function]:
    """Decorate an elementwise function: real arrays get torch's derivatives, complex ones JAX's.

    Args:
        derivatives: one function for each operand, or None if the derivative is 0. It takes (tangent of the operand,
            result, *operands) and returns the tangent of the result, which must be linear in the first argument. It
            must mask factors that are not finite before it multiplies them with the tangent: the transpose multiplies
            them by gradients of 0, which would give NaN.
        holomorphic: use these derivatives for complex arrays too.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> square = with_derivatives(lambda tangent, result, x: tangent * 7)(lambda x: x * x)
        >>> float(jax.grad(square)(1.0))
        7.0
    """

    def decorate(function: Function) -> Function:
        ruled = jax.custom_jvp(function)

        def rule(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Pair:
            result = ruled(*primals)
            total = jnp.zeros_like(result)
            for derivative, tangent in zip(derivatives, tangents, strict=False):
                # Skip constant operands: zero times an infinite derivative would be NaN.
                if derivative is not None and not isinstance(tangent, SymbolicZero):
                    total += jnp.asarray(derivative(tangent, result, *primals), total.dtype)
            return result, total

        ruled.defjvp(rule, symbolic_zeros=True)

        @functools.wraps(function)
        def differentiable(*operands: Any) -> Array:
            plain = not holomorphic and any(map(jnp.iscomplexobj, operands))
            return (function if plain else ruled)(*operands)

        return differentiable

    return decorate


@with_derivatives(lambda tangent, _, x: jnp.sign(x) * tangent)
def magnitude(x: Array) -> Array:
    """|x|, with derivative 0 at 0."""
    return jnp.abs(x)


# -- maximum and minimum ---------------------------------------------------------------------------


def _half_if_equal(tangent: Array, not_chosen: Array, equal: Array) -> Array:
    """The tangent of one of two operands: each contributes half where they are equal."""
    return jnp.where(not_chosen, 0, jnp.where(equal, tangent / 2, tangent))


maximum = with_derivatives(
    lambda tangent, _, x, y: _half_if_equal(tangent, x < y, x == y),
    lambda tangent, _, x, y: _half_if_equal(tangent, x > y, x == y),
)(jnp.maximum)
minimum = with_derivatives(
    lambda tangent, _, x, y: _half_if_equal(tangent, x > y, x == y),
    lambda tangent, _, x, y: _half_if_equal(tangent, x < y, x == y),
)(jnp.minimum)
fmax = with_derivatives(
    lambda tangent, _, x, y: jnp.where((x >= y) | jnp.isnan(y), tangent, 0),
    lambda tangent, _, x, y: jnp.where((x >= y) | jnp.isnan(y), 0, tangent),
)(jnp.fmax)
fmin = with_derivatives(
    lambda tangent, _, x, y: jnp.where((x <= y) | jnp.isnan(y), tangent, 0),
    lambda tangent, _, x, y: jnp.where((x <= y) | jnp.isnan(y), 0, tangent),
)(jnp.fmin)


# -- functions of two operands ---------------------------------------------------------------------

hypot = with_derivatives(
    lambda tangent, result, x, y: tangent * (x / result),
    lambda tangent, result, x, y: tangent * (y / result),
)(jnp.hypot)


def _over_squares(part: Array, x: Array, y: Array) -> Array:
    return jnp.where((x == 0) & (y == 0), 0, part / (x * x + y * y))


arctan2 = with_derivatives(
    lambda tangent, _, x, y: tangent * _over_squares(y, x, y),
    lambda tangent, _, x, y: tangent * _over_squares(-x, x, y),
)(jnp.arctan2)
logaddexp = with_derivatives(
    lambda tangent, _, x, y: tangent / (1 + jnp.exp(y - x)),
    lambda tangent, _, x, y: tangent / (1 + jnp.exp(x - y)),
)(jnp.logaddexp)
logaddexp2 = with_derivatives(
    lambda tangent, _, x, y: tangent / (1 + jnp.exp2(y - x)),
    lambda tangent, _, x, y: tangent / (1 + jnp.exp2(x - y)),
)(jnp.logaddexp2)
copysign = with_derivatives(
    lambda tangent, result, x, y: tangent * jnp.where(x == 0, 0, result / x), None
)(jnp.copysign)


def _exponent_derivative(tangent: Array, result: Array, base: Array, exponent: Array) -> Array:
    return tangent * jnp.where((base == 0) & (exponent >= 0), 0, result * jnp.log(base))


def _base_derivative(tangent: Array, _: Array, base: Array, exponent: Array) -> Array:
    return tangent * jnp.where(exponent == 0, 0, exponent * power(base, exponent - 1))


power = with_derivatives(_base_derivative, _exponent_derivative)(jnp.power)
inverse_root = with_derivatives(
    lambda tangent, _, x: tangent * (-0.5 * power(x, jnp.asarray(-1.5, x.dtype)))
)(lambda x: 1 / jnp.sqrt(x))


# -- reductions ------------------------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def extremum(x: Array, reduce: Function, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The maximum or minimum over some axes. All elements that equal it share the derivative, which is NaN for NaN."""
    return reduce(x, axes, keepdims=keepdims)


@extremum.defjvp
def _extremum_derivative(
    reduce: Function, axes: tuple[int, ...], keepdims: bool, primals: Array, tangents: Array
) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    result = extremum(x, reduce, axes, True)
    equal = x == result
    # If the result is NaN, no element equals it and the count is 0. Then `tangent * 0` makes the gradient NaN. It would
    # be 0 with a literal 0, or with a product with the mask, which XLA simplifies.
    share = jnp.where(equal, tangent, tangent * 0) / jnp.sum(equal, axes, keepdims=True)
    derivative = jnp.sum(share, axes, keepdims=keepdims).astype(result.dtype)
    return (result if keepdims else result.squeeze(axes)), derivative


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def selected(x: Array, select: Function) -> Array:
    """The element that `select` chooses from all. Elements equal to it share the derivative; here NaN equals NaN."""
    return select(x)


@selected.defjvp
def _selected_derivative(select: Function, primals: Array, tangents: Array) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    result = selected(x, select)
    equal = jnp.where(jnp.isnan(result), jnp.isnan(x), x == result)
    return result, jnp.sum(jnp.where(equal, tangent, 0)) / jnp.sum(equal).astype(tangent.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def mean_square(x: Array, freedom: Array, axes: tuple[int, ...]) -> Array:
    """The sum of the squared deviations from the mean, divided by `freedom`. For real arrays; keeps the axes."""
    mean = jnp.sum(x, axes, keepdims=True) / np.asarray(_count(x, axes), x.dtype)
    return jnp.sum(jnp.square(x - mean), axes, keepdims=True) / freedom


@mean_square.defjvp
def _mean_square_derivative(
    axes: tuple[int, ...], primals: Array, tangents: Array
) -> tuple[Array, Array]:
    (x, freedom), (tangent, _) = primals, tangents
    mean = jnp.sum(x, axes, keepdims=True) / np.asarray(_count(x, axes), x.dtype)
    derivative = jnp.sum(2 / freedom * (x - mean) * tangent, axes, keepdims=True)
    return mean_square(x, freedom, axes), derivative


def _count(x: Array, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
