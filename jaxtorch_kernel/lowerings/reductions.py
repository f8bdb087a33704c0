"""Reductions over dimensions: sums, products, extrema, truth, norms.

Half types are summed in float32 and rounded once; integers and bools are summed as int64, as in torch. Indices
(`argmax`) are computed as int32, and the dispatch widens them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..storage.dtypes import to_numpy
from .nondifferentiable import extremum, selected
from .promote import convert, kind_of, widen
from .registry import lower
from .types import Array

Dims = int | Sequence[int] | None
Pair = tuple[Array, Array]
Reduce = Callable[..., Array]


def axes_of(x: Array, dim: Dims) -> tuple[int, ...]:
    """The axes that `dim` names, or all axes if it names none."""
    dims = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if not dims or not x.ndim:
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in dims)


def count_of(x: Array, axes: Sequence[int]) -> int:
    """The number of elements that are reduced to one."""
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))


def accumulator(self: Array, dtype: torch.dtype | None = None) -> Array:
    """The terms of a sum: `self` in the requested dtype, integers as int64, half types as float32."""
    if dtype is not None:
        self = convert(self, to_numpy(dtype))
    elif kind_of(self.dtype) in "bi":
        self = self.astype(np.int64)
    return widen(self)[0]


def squared(x: Array) -> Array:
    """The squared absolute value. `abs` of a complex number would take a square root."""
    if kind_of(x.dtype) == "c":
        return jnp.square(x.real) + jnp.square(x.imag)
    return jnp.square(x)


def root(x: Array, p: float = 2) -> Array:
    """The p-th root of nonnegative numbers. Its gradient at 0 is 0, as torch defines it for norms."""
    zero = x == 0
    x = jnp.where(zero, 1, x)
    return jnp.where(zero, 0, jnp.sqrt(x) if p == 2 else x ** (1 / p))


# -- sums and products -----------------------------------------------------------------------------


@lower("sum.dim_IntList")
def sum_dim(
    self: Array, dim: Dims, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    return jnp.sum(accumulator(self, dtype), axes_of(self, dim), keepdims=keepdim)


@lower("sum")
def sum_all(self: Array, dtype: torch.dtype | None = None) -> Array:
    return sum_dim(self, None, dtype=dtype)


@lower("nansum")
def nansum(
    self: Array, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    self = accumulator(self, dtype)
    return jnp.sum(jnp.where(jnp.isnan(self), 0, self), axes_of(self, dim), keepdims=keepdim)


@lower("mean.dim")
def mean_dim(
    self: Array, dim: Dims, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    total = accumulator(self, dtype)
    axes = axes_of(self, dim)
    return jnp.sum(total, axes, keepdims=keepdim) / np.asarray(count_of(self, axes), total.dtype)


@lower("mean")
def mean_all(self: Array, dtype: torch.dtype | None = None) -> Array:
    return mean_dim(self, None, dtype=dtype)


@lower("prod.dim_int")
def prod_dim(
    self: Array, dim: Dims, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    return jnp.prod(accumulator(self, dtype), axes_of(self, dim), keepdims=keepdim)


@lower("prod")
def prod_all(self: Array, dtype: torch.dtype | None = None) -> Array:
    return prod_dim(self, None, dtype=dtype)


# -- truth -----------------------------------------------------------------------------------------


def _truth(name: str, reduce: Reduce) -> None:
    @lower(name)
    def full(self: Array) -> Array:
        return reduce(self)

    @lower(f"{name}.dim")
    def over_dim(self: Array, dim: int, keepdim: bool = False) -> Array:
        return reduce(self, axes_of(self, dim), keepdims=keepdim)

    @lower(f"{name}.dims")
    def over_dims(self: Array, dim: Sequence[int] | None = None, keepdim: bool = False) -> Array:
        # In this operator, unlike others, an empty list means no dimensions.
        axes = () if dim is not None and not dim else axes_of(self, dim)
        return reduce(self, axes, keepdims=keepdim)


_truth("any", jnp.any)
_truth("all", jnp.all)


@lower("count_nonzero.dim_IntList")
def count_nonzero_dims(self: Array, dim: Dims) -> Array:
    return jnp.sum(self != 0, axes_of(self, dim), dtype=np.int64)


@lower("count_nonzero")
def count_nonzero(self: Array, dim: int | None = None) -> Array:
    return count_nonzero_dims(self, dim)


# -- extrema: NaN wins, and the index is that of the first of equal elements -----------------------


def _extrema(best: str, reduce: Reduce) -> None:
    def index_of(x: Array, axis: int) -> Array:
        # Two plain reductions: on a CPU, XLA's argmax (one reduction over pairs) takes 25 times as long.
        winner = (x == reduce(x, axis, keepdims=True)) | (x != x)
        index = jax.lax.broadcasted_iota(np.int32, x.shape, axis)
        return jnp.min(jnp.where(winner, index, x.shape[axis] - 1), axis, keepdims=True)

    @lower(f"a{best}")
    def over_dims(self: Array, dim: Dims = (), keepdim: bool = False) -> Array:
        return extremum(self, reduce, axes_of(self, dim), keepdim)

    @lower(best)
    def full(self: Array) -> Array:
        return selected(self, reduce)

    @lower(f"arg{best}")
    def arg(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        if dim is None or not self.ndim:
            return index_of(self.reshape(-1), 0).reshape((1,) * self.ndim if keepdim else ())
        index = index_of(self, dim % self.ndim)
        return index if keepdim else index.squeeze(dim)

    @lower(f"{best}.dim")
    def with_index(self: Array, dim: int, keepdim: bool = False) -> Pair:
        if not self.ndim:
            return self, jnp.zeros((), np.int32)
        index = index_of(self, dim % self.ndim)
        # Read the element instead of reducing: then only this element gets a gradient, and equal ones do not.
        value = jnp.take_along_axis(self, index, dim)
        return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


_extrema("max", jnp.max)
_extrema("min", jnp.min)


@lower("aminmax")
def aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Pair:
    axes = axes_of(self, dim)
    return extremum(self, jnp.min, axes, keepdim), extremum(self, jnp.max, axes, keepdim)
