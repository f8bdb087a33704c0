"""Reductions over dimensions: sums, products, extrema, truth, norms.

Half types are summed in float32 and rounded once; integers and bools are summed as int64, as in torch.
Indices (`argmax`) are computed as int32 and widened by the dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..storage.dtypes import to_numpy
from .nondifferentiable import extreme, picked
from .promote import cast, kind_of, widen
from .registry import lower

Dims = int | Sequence[int] | None
Pair = tuple[jax.Array, jax.Array]
Reduce = Callable[..., jax.Array]


def axes_of(x: Any, dim: Dims) -> tuple[int, ...]:
    """The axes that `dim` names; none named means all of them."""
    dims = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if not dims or not x.ndim:
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in dims)


def count_of(x: Any, axes: Sequence[int]) -> int:
    """How many elements each result is made of."""
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))


def accumulator(self: Any, dtype: torch.dtype | None = None) -> Any:
    """The terms of the sum: `self` in the requested dtype; integers as int64, half types as float32."""
    if dtype is not None:
        self = cast(self, to_numpy(dtype))
    elif kind_of(self.dtype) in "bi":
        self = self.astype(np.int64)
    return widen(self)[0]


def squared(x: Any) -> jax.Array:
    """The squared absolute value, without the square root that `abs` of a complex number takes."""
    if kind_of(x.dtype) == "c":
        return jnp.square(x.real) + jnp.square(x.imag)
    return jnp.square(x)


def root(x: Any, p: float = 2) -> jax.Array:
    """The p-th root of what is not negative. At 0 its gradient is 0, torch's choice for norms."""
    zero = x == 0
    x = jnp.where(zero, 1, x)
    return jnp.where(zero, 0, jnp.sqrt(x) if p == 2 else x ** (1 / p))


# -- sums and products -----------------------------------------------------------------------------


@lower("sum.dim_IntList")
def sum_dim(self: Any, dim: Dims, keepdim: bool = False, dtype: Any = None) -> jax.Array:
    return jnp.sum(accumulator(self, dtype), axes_of(self, dim), keepdims=keepdim)


@lower("sum")
def sum_all(self: Any, dtype: Any = None) -> jax.Array:
    return sum_dim(self, None, dtype=dtype)


@lower("nansum")
def nansum(self: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> jax.Array:
    self = accumulator(self, dtype)
    return jnp.sum(jnp.where(jnp.isnan(self), 0, self), axes_of(self, dim), keepdims=keepdim)


@lower("mean.dim")
def mean_dim(self: Any, dim: Dims, keepdim: bool = False, dtype: Any = None) -> jax.Array:
    total = accumulator(self, dtype)
    axes = axes_of(self, dim)
    return jnp.sum(total, axes, keepdims=keepdim) / np.asarray(count_of(self, axes), total.dtype)


@lower("mean")
def mean_all(self: Any, dtype: Any = None) -> jax.Array:
    return mean_dim(self, None, dtype=dtype)


@lower("prod.dim_int")
def prod_dim(self: Any, dim: Dims, keepdim: bool = False, dtype: Any = None) -> jax.Array:
    return jnp.prod(accumulator(self, dtype), axes_of(self, dim), keepdims=keepdim)


@lower("prod")
def prod_all(self: Any, dtype: Any = None) -> jax.Array:
    return prod_dim(self, None, dtype=dtype)


# -- truth -----------------------------------------------------------------------------------------


def _truth(name: str, reduce: Reduce) -> None:
    @lower(name)
    def full(self: Any) -> jax.Array:
        return reduce(self)

    @lower(f"{name}.dim")
    def over_dim(self: Any, dim: int, keepdim: bool = False) -> jax.Array:
        return reduce(self, axes_of(self, dim), keepdims=keepdim)

    @lower(f"{name}.dims")
    def over_dims(self: Any, dim: Any = None, keepdim: bool = False) -> jax.Array:
        # Unlike elsewhere, an empty list reduces nothing.
        axes = () if dim is not None and not dim else axes_of(self, dim)
        return reduce(self, axes, keepdims=keepdim)


_truth("any", jnp.any)
_truth("all", jnp.all)


@lower("count_nonzero.dim_IntList")
def count_nonzero_dims(self: Any, dim: Dims) -> jax.Array:
    return jnp.sum(self != 0, axes_of(self, dim), dtype=np.int64)


@lower("count_nonzero")
def count_nonzero(self: Any, dim: int | None = None) -> jax.Array:
    return count_nonzero_dims(self, dim)


# -- extrema: NaN wins, the first of equals is the one indexed -------------------------------------


def _extrema(best: str, reduce: Reduce) -> None:
    def index_of(x: Any, axis: int) -> jax.Array:
        # Two plain reductions: XLA's argmax, one over pairs, takes 25 times as long on a CPU.
        winner = (x == reduce(x, axis, keepdims=True)) | (x != x)
        index = jax.lax.broadcasted_iota(np.int32, x.shape, axis)
        return jnp.min(jnp.where(winner, index, x.shape[axis] - 1), axis, keepdims=True)

    @lower(f"a{best}")
    def over_dims(self: Any, dim: Dims = (), keepdim: bool = False) -> jax.Array:
        return extreme(self, reduce, axes_of(self, dim), keepdim)

    @lower(best)
    def full(self: Any) -> jax.Array:
        return picked(self, reduce)

    @lower(f"arg{best}")
    def arg(self: Any, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        if dim is None or not self.ndim:
            return index_of(self.reshape(-1), 0).reshape((1,) * self.ndim if keepdim else ())
        index = index_of(self, dim % self.ndim)
        return index if keepdim else index.squeeze(dim)

    @lower(f"{best}.dim")
    def with_index(self: Any, dim: int, keepdim: bool = False) -> Pair:
        if not self.ndim:
            return self, jnp.zeros((), np.int32)
        index = index_of(self, dim % self.ndim)
        # Taken, not reduced: so that a gradient goes to this element and to none of its equals.
        value = jnp.take_along_axis(self, index, dim)
        return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


_extrema("max", jnp.max)
_extrema("min", jnp.min)


@lower("aminmax")
def aminmax(self: Any, dim: int | None = None, keepdim: bool = False) -> Pair:
    axes = axes_of(self, dim)
    return extreme(self, jnp.min, axes, keepdim), extreme(self, jnp.max, axes, keepdim)
