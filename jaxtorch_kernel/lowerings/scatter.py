"""`gather`, `scatter` and their reductions: one index per element, along one dimension.

The index may be smaller than the other tensors; only the part within its extent is used.

Along each other dimension in which the index has the size of the tensor, they are one `vmap` (`_by_rows`). XLA then
knows that no row needs another one: rows on several devices are not gathered.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .indexing import EXACT, added, along, narrow
from .products import multiply_at
from .promote import cast, kind_of, opmath
from .registry import lower
from .types import Array, Arrays, Pair, Scalar, Subscript

_METHODS = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "amin": "min",
    "amax": "max",
}
# Of booleans, the sum is the logical or, and the product the logical and.
_OF_BOOLEANS = {"add": "max", "multiply": "min"}


def _coordinates(dim: int, index: Array) -> Subscript:
    """The full coordinates of the elements that `index` selects along one dimension."""
    grid = [jax.lax.broadcasted_iota(np.int32, index.shape, d) for d in range(index.ndim)]
    grid[dim % index.ndim] = narrow(index)
    return tuple(grid)


def _extent(x: Array, index: Array) -> Array:
    return jnp.atleast_1d(x)[tuple(slice(n) for n in index.shape)]


def _by_rows(
    function: Callable[..., Array], self: Array, dim: int, index: Array, *others: Array
) -> Array:
    """`function(self, dim, index, *others)`, mapped over the dimensions that only enumerate rows.

    Args:
        function: treats each row alone.
        dim: that along which the index selects.
        index: with as many dimensions as `self`, and at least one.
        others: of the shape of the index, or scalars.
    """
    dim %= index.ndim
    rows = [d for d in range(index.ndim) if d != dim and index.shape[d] == self.shape[d]]

    def inner(*arrays: Array) -> Array:
        x, indices, *rest = arrays
        return function(x, dim - sum(d < dim for d in rows), indices, *rest)

    for i in reversed(range(len(rows))):  # i dimensions were taken by the maps around this one
        axis = rows[i] - i
        inner = jax.vmap(inner, [axis if x.ndim else None for x in (self, index, *others)], axis)
    return inner(self, index, *others)


@lower("gather")
def gather(self: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    shape, index = index.shape, jnp.atleast_1d(index)
    if not index.size:
        return jnp.zeros(shape, self.dtype)
    return _by_rows(_gathered, jnp.atleast_1d(self), dim, index).reshape(shape)


def _gathered(self: Array, dim: int, index: Array) -> Array:
    return self.at[_coordinates(dim, index)].get(**EXACT)


@lower("scatter.src")
def scatter(self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scattered(self, dim, index, src, "set")


@lower("scatter.value")
def scatter_value(self: Array, dim: int, index: Array, value: Scalar) -> Array:
    return _scattered(self, dim, index, cast(value, self.dtype), "set")


@lower("scatter.reduce")
def scatter_reduced(self: Array, dim: int, index: Array, src: Array, reduce: str) -> Array:
    return _scattered(self, dim, index, src, _METHODS[reduce])


@lower("scatter.value_reduce")
def scatter_value_reduced(self: Array, dim: int, index: Array, value: Scalar, reduce: str) -> Array:
    return _scattered(self, dim, index, cast(value, self.dtype), _METHODS[reduce])


@lower("scatter_add")
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    return _scattered(self, dim, index, src, "add")


def _scattered(self: Array, dim: int, index: Array, src: Array, method: str) -> Array:
    index = jnp.atleast_1d(index)
    if not index.size:
        return self
    src = jnp.asarray(src)
    src = _extent(src, index) if src.ndim else src
    if self.dtype == np.bool_:
        method = _OF_BOOLEANS.get(method, method)

    def scattered(self: Array, dim: int, index: Array, src: Array) -> Array:
        elements = self.at[_coordinates(dim, index)]
        result: Array = getattr(elements, method)(src, **EXACT)
        return result

    return _by_rows(scattered, jnp.atleast_1d(self), dim, index, src).reshape(self.shape)


def _identity(reduce: str, dtype: np.dtype) -> float:
    """The initial value of the reduction when `self` is not included."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    kind = kind_of(dtype)
    if kind == "b":
        return reduce == "amin"
    if kind == "i":
        info = jnp.iinfo(dtype)
        return int(info.max if reduce == "amin" else info.min)
    return np.inf if reduce == "amin" else -np.inf


def _reduced(
    self: Array, subscript: Subscript, src: Array, reduce: str, include_self: bool, wide: np.dtype
) -> Array:
    """`self` with `src` reduced into `self[subscript]`, in the dtype `wide`."""
    self, src = self.astype(wide), src.astype(wide)
    if reduce in ("amax", "amin"):
        return _extremum(self, src, subscript, reduce, include_self)
    if not include_self:
        self = jnp.where(_selected(self, subscript), np.array(_identity(reduce, wide), wide), self)
    if reduce == "prod":
        return multiply_at(self, subscript, src)
    if reduce == "sum":
        return added(self, subscript, src, EXACT)
    total = self.at[subscript].add(src, **EXACT)  # of booleans refused, as by torch
    counts = jnp.full(self.shape, int(include_self), np.int32)
    counts = jnp.maximum(counts.at[subscript].add(1, **EXACT), 1).astype(wide)
    return total // counts if kind_of(wide) == "i" else total / counts


def _selected(x: Array, subscript: Subscript) -> Array:
    """A mask of the elements that a subscript selects.

    Used with `where`, because JAX differentiates `x.at[...].set` only for unique indices.
    """
    return jnp.zeros(x.shape, bool).at[subscript].set(True, **EXACT)


def _extremum(
    self: Array, src: Array, subscript: Subscript, reduce: str, include_self: bool
) -> Array:
    """The maximum or minimum. Equal elements share the gradient, as in torch even with an excluded one of `self`."""
    slices = [i for i in subscript if isinstance(i, slice)]  # before all indices
    # The indices are operands of the differentiated function, the slices are not.
    indices = [i for i in subscript if not isinstance(i, slice)]

    def with_indices(indices: Arrays) -> Subscript:
        return (*slices, *indices)

    @jax.custom_jvp
    def extremum(self: Array, src: Array, indices: Arrays) -> Array:
        at = with_indices(indices)
        if not include_self:
            first = np.array(_identity(reduce, self.dtype), self.dtype)
            self = jnp.where(_selected(self, at), first, self)
        result: Array = getattr(self.at[at], _METHODS[reduce])(src, **EXACT)
        return result

    @extremum.defjvp
    def derivative(
        primals: tuple[Array, Array, Arrays], tangents: tuple[Array, Array, Arrays]
    ) -> Pair:
        (self, src, indices), (self_tangent, src_tangent, _) = primals, tangents
        at = with_indices(indices)
        result = extremum(self, src, indices)
        best, src_best = self == result, src == result.at[at].get(**EXACT)
        count = best.astype(result.dtype).at[at].add(src_best.astype(result.dtype))
        tangent = jnp.where(best, self_tangent, 0)
        if not include_self:
            tangent = jnp.where(_selected(self, at), 0, tangent)
        tangent = tangent.at[at].add(jnp.where(src_best, src_tangent, 0), **EXACT)
        return result, tangent / count

    return extremum(self, src, indices)


@lower("scatter_reduce.two")
def scatter_reduce(
    self: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool = True
) -> Array:
    index = jnp.atleast_1d(index)
    if not index.size:
        return self
    wide = opmath(self.dtype)

    def reduced(self: Array, dim: int, index: Array, src: Array) -> Array:
        return _reduced(self, _coordinates(dim, index), src, reduce, include_self, wide)

    target, src = jnp.atleast_1d(self), _extent(src, index)
    return _by_rows(reduced, target, dim, index, src).reshape(self.shape)


@lower("index_reduce")
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    rows, subscript = along(self, dim, index)
    source = jnp.atleast_1d(source)
    # Unlike in `scatter_reduce`, torch reduces half types in their own precision here.
    return _reduced(rows, subscript, source, reduce, include_self, self.dtype).reshape(self.shape)
