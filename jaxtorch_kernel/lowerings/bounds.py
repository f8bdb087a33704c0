"""Clamps by tensors and by numbers, with torch's derivatives where an element equals a bound.

Up to torch 2.13 such an element has the whole derivative. From 2.14 on, a bound that is a tensor gets half of it, and
where the bound is a number, the derivative is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import torch

from .nondifferentiable import Function, with_derivatives
from .types import Array

_TIES_ARE_SPLIT = torch.__version__ >= "2.14"


def _least(x: Array, low: Array) -> Array:
    """max(x, low), NaN where either is NaN."""
    return jnp.where((x < low) | (low != low), low, x)


def _most(x: Array, high: Array) -> Array:
    """min(x, high), NaN where either is NaN."""
    return jnp.where((x > high) | (high != high), high, x)


def _between(x: Array, low: Array, high: Array) -> Array:
    """The smaller of the bounds if they are in the wrong order."""
    return _most(_least(x, low), high)


def _part(tangent: Array, whole: Array, half: Array) -> Array:
    return jnp.where(whole, tangent, jnp.where(half, tangent / 2, 0))


def _is_a_tie(x: Array, low: Array, high: Array) -> Array:
    return (low < high) & ((x == low) | (x == high))


# For each operand. NaN is neither less nor more than a number, so `~(x <= low)` is not `x > low`.
_SPLIT: list[list[Function]] = [
    [
        lambda tangent, _, x, low: _part(tangent, ~(x <= low), x == low),
        lambda tangent, _, x, low: _part(tangent, ~(x >= low), x == low),
    ],
    [
        lambda tangent, _, x, high: _part(tangent, ~(x >= high), x == high),
        lambda tangent, _, x, high: _part(tangent, ~(x <= high), x == high),
    ],
    [
        lambda tangent, _, x, low, high: _part(
            tangent,
            ~((x < low) | (x > high) | _is_a_tie(x, low, high)),
            _is_a_tie(x, low, high),
        ),
        lambda tangent, _, x, low, high: _part(
            tangent, (x < low) & (low <= high), (x == low) & (low < high)
        ),
        lambda tangent, _, x, low, high: _part(
            tangent, (x > high) & (low <= high) | (high < low), (x == high) & (low < high)
        ),
    ],
]
_SPLIT_OF_NUMBERS: list[Function] = [
    lambda tangent, _, x, low: jnp.where(x > low, tangent, 0),
    lambda tangent, _, x, high: jnp.where(x < high, tangent, 0),
    lambda tangent, _, x, low, high: jnp.where((x > low) & (x < high), tangent, 0),
]
_WHOLE: list[list[Function]] = [
    [
        lambda tangent, _, x, low: jnp.where(x >= low, tangent, 0),
        lambda tangent, _, x, low: jnp.where(x < low, tangent, 0),
    ],
    [
        lambda tangent, _, x, high: jnp.where(x <= high, tangent, 0),
        lambda tangent, _, x, high: jnp.where(x > high, tangent, 0),
    ],
    [
        lambda tangent, _, x, low, high: jnp.where((x >= low) & (x <= high), tangent, 0),
        lambda tangent, _, x, low, high: jnp.where((low < high) & (x < low), tangent, 0),
        lambda tangent, _, x, low, high: jnp.where((x > high) | (high < low), tangent, 0),
    ],
]


class Kind(NamedTuple):
    """The functions for one kind of bounds: of (x, low), (x, high) and (x, low, high)."""

    at_least: Function
    at_most: Function
    between: Function


def _kind(derivatives: list[list[Function]]) -> Kind:
    functions: list[Function] = [_least, _most, _between]
    pairs = zip(functions, derivatives, strict=True)
    return Kind(*(with_derivatives(*of_operands)(f) for f, of_operands in pairs))


TENSORS = _kind(_SPLIT if _TIES_ARE_SPLIT else _WHOLE)
NUMBERS = _kind([[f] for f in _SPLIT_OF_NUMBERS] if _TIES_ARE_SPLIT else _WHOLE)
