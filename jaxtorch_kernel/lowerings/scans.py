"""Cumulative operators along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .promote import kind_of, widen
from .reductions import accumulator
from .registry import lower
from .types import Array, Pair

R = TypeVar("R")


def _along(scan: Callable[[Array, int], R], self: Array, dim: int) -> R:
    """`scan(x, axis)`, where a 0-dim tensor is scanned as a row of one element."""
    if self.ndim:
        return scan(self, dim % self.ndim)
    return jax.tree.map(lambda x: x.reshape(()), scan(self.reshape(1), 0))


@lower("cumsum")
def cumsum(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return _along(jax.lax.cumsum, accumulator(self, dtype), dim)


@lower("cumprod")
def cumprod(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return _along(jax.lax.cumprod, accumulator(self, dtype), dim)


@lower("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self: Array, dim: int) -> Array:
    (self,) = widen(self)
    if kind_of(self.dtype) == "c":
        return _along(
            lambda x, axis: jax.lax.associative_scan(jnp.logaddexp, x, axis=axis), self, dim
        )
    return _along(jax.lax.cumlogsumexp, self, dim)


def _running_best(not_worse: Callable[[Array, Array], Array]) -> Callable[[Array, int], Pair]:
    def combine(left: Pair, right: Pair) -> Pair:
        (a, i), (b, j) = left, right
        # NaN wins over all numbers, and the last of equal elements wins, so `combine` is associative.
        later = (b != b) | ((a == a) & not_worse(b, a))
        return jnp.where(later, b, a), jnp.where(later, j, i)

    def scan(self: Array, axis: int) -> Pair:
        index = jax.lax.broadcasted_iota(np.int32, self.shape, axis)
        return jax.lax.associative_scan(combine, (self, index), axis=axis)

    def lowering(self: Array, dim: int) -> Pair:
        return _along(scan, self, dim)

    return lowering


def _register(name: str, not_worse: Callable[[Array, Array], Array]) -> None:
    best = lower(name)(_running_best(not_worse))

    @lower(f"_{name}_helper", meta=False)
    def helper(self: Array, values: Array, indices: Array, dim: int) -> Pair:
        return best(self, dim)


_register("cummax", jnp.greater_equal)
_register("cummin", jnp.less_equal)
