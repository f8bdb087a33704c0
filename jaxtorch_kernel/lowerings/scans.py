"""Cumulative operators along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .promote import kind_of, widen
from .reductions import accumulator
from .registry import lower


def _along(scan: Callable[..., Any], self: Any, dim: int) -> Any:
    """`scan(x, axis)`; a 0-dim tensor is a row of one."""
    if self.ndim:
        return scan(self, dim % self.ndim)
    return jax.tree.map(lambda x: x.reshape(()), scan(self.reshape(1), 0))


@lower("cumsum")
def cumsum(self: Any, dim: int, dtype: Any = None) -> jax.Array:
    return _along(jax.lax.cumsum, accumulator(self, dtype), dim)


@lower("cumprod")
def cumprod(self: Any, dim: int, dtype: Any = None) -> jax.Array:
    return _along(jax.lax.cumprod, accumulator(self, dtype), dim)


@lower("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self: Any, dim: int) -> jax.Array:
    (self,) = widen(self)
    if kind_of(self.dtype) == "c":
        return _along(
            lambda x, axis: jax.lax.associative_scan(jnp.logaddexp, x, axis=axis), self, dim
        )
    return _along(jax.lax.cumlogsumexp, self, dim)


def _running_best(not_worse: Callable[[Any, Any], Any]) -> Callable[[Any, int], Any]:
    def combine(left: Any, right: Any) -> Any:
        (a, i), (b, j) = left, right
        # NaN beats everything; of equals the latest is taken. So `combine` is associative.
        later = (b != b) | ((a == a) & not_worse(b, a))
        return jnp.where(later, b, a), jnp.where(later, j, i)

    def scan(self: Any, axis: int) -> Any:
        index = jax.lax.broadcasted_iota(np.int32, self.shape, axis)
        return jax.lax.associative_scan(combine, (self, index), axis=axis)

    def lowering(self: Any, dim: int) -> Any:
        return _along(scan, self, dim)

    return lowering


for _name, _not_worse in (("cummax", jnp.greater_equal), ("cummin", jnp.less_equal)):
    _best = lower(_name)(_running_best(_not_worse))

    def _helper(self: Any, values: Any, indices: Any, dim: int, best: Any = _best) -> Any:
        return best(self, dim)

    lower(f"_{_name}_helper", meta=False)(_helper)
