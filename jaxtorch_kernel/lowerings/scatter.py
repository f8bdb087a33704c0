"""`gather`, `scatter` and their reductions: one index per element, along one dimension.

The index may be smaller than the other tensors; only the part within its extent is used.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .indexing import EXACT, along, narrow
from .products import multiply_at
from .promote import cast, kind_of, opmath
from .registry import lower

_METHODS = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "amin": "min",
    "amax": "max",
}


def _places(dim: int, index: Any) -> tuple[Any, ...]:
    """Full coordinates of the elements that an index names along one dimension."""
    grid = [jax.lax.broadcasted_iota(np.int32, index.shape, d) for d in range(index.ndim)]
    grid[dim % index.ndim] = narrow(index)
    return tuple(grid)


def _extent(x: Any, index: Any) -> Any:
    return jnp.atleast_1d(x)[tuple(slice(n) for n in index.shape)]


@lower("gather")
def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> jax.Array:
    shape, index = index.shape, jnp.atleast_1d(index)
    if not index.size:
        return jnp.zeros(shape, self.dtype)
    places = _places(dim, index)
    return jnp.atleast_1d(self).at[places].get(**EXACT).reshape(shape)


@lower("scatter.src")
def scatter(self: Any, dim: int, index: Any, src: Any) -> jax.Array:
    return _scattered(self, dim, index, src, "set")


@lower("scatter.value")
def scatter_value(self: Any, dim: int, index: Any, value: Any) -> jax.Array:
    return _scattered(self, dim, index, cast(value, self.dtype), "set")


@lower("scatter.reduce")
def scatter_reduced(self: Any, dim: int, index: Any, src: Any, reduce: str) -> jax.Array:
    return _scattered(self, dim, index, src, _METHODS[reduce])


@lower("scatter.value_reduce")
def scatter_value_reduced(self: Any, dim: int, index: Any, value: Any, reduce: str) -> jax.Array:
    return _scattered(self, dim, index, cast(value, self.dtype), _METHODS[reduce])


@lower("scatter_add")
def scatter_add(self: Any, dim: int, index: Any, src: Any) -> jax.Array:
    return _scattered(self, dim, index, src, "add")


def _scattered(self: Any, dim: int, index: Any, src: Any, method: str) -> jax.Array:
    index = jnp.atleast_1d(index)
    if not index.size:
        return self
    src = _extent(src, index) if src.ndim else src
    place = jnp.atleast_1d(self).at[_places(dim, index)]
    return getattr(place, method)(src, **EXACT).reshape(self.shape)


def _identity(reduce: str, dtype: Any) -> Any:
    """What an element that takes no part starts from."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    kind = kind_of(dtype)
    if kind == "b":
        return reduce == "amin"
    info = jnp.iinfo(dtype) if kind == "i" else None
    if info is None:
        return np.inf if reduce == "amin" else -np.inf
    return info.max if reduce == "amin" else info.min


def _reduced(
    self: Any, place: Any, src: Any, reduce: str, include_self: bool, wide: Any
) -> jax.Array:
    """`self` with `src` reduced into `place`, a subscript of it, in the dtype `wide`."""
    start = self.astype(wide)
    if not include_self:
        start = jnp.where(_reached(start, place), np.array(_identity(reduce, wide), wide), start)
    if reduce == "prod":
        return multiply_at(start, place, src.astype(wide))
    if reduce in ("amax", "amin"):
        return _extremum(self.astype(wide), src.astype(wide), place, (reduce, include_self))
    result = getattr(start.at[place], _METHODS[reduce])(src.astype(wide), **EXACT)
    if reduce != "mean":
        return result
    counts = jnp.full(self.shape, int(include_self), np.int32)
    counts = jnp.maximum(counts.at[place].add(1, **EXACT), 1)
    if kind_of(wide) == "i":
        return result // counts.astype(wide)
    return result / counts.astype(wide)


def _reached(x: Any, place: tuple[Any, ...]) -> jax.Array:
    """Which elements a subscript names. A mask, and no `set` of them: that has a gradient for unique indices only."""
    return jnp.zeros(x.shape, bool).at[place].set(True, **EXACT)


def _extremum(self: Any, src: Any, place: tuple[Any, ...], how: tuple[str, bool]) -> jax.Array:
    """Equals share the gradient, among them an element of `self` that takes no part, as in torch."""
    reduce, include_self = how
    rows = sum(isinstance(part, slice) for part in place)  # before the indices, and no operands

    def at(x: Any, places: Any) -> Any:
        return x.at[(*[slice(None)] * rows, *places)]

    def reached(x: Any, places: Any) -> jax.Array:
        return _reached(x, (*[slice(None)] * rows, *places))

    @jax.custom_jvp
    def extremum(self: Any, src: Any, places: Any) -> jax.Array:
        if not include_self:
            first = np.array(_identity(reduce, self.dtype), self.dtype)
            self = jnp.where(reached(self, places), first, self)
        return getattr(at(self, places), _METHODS[reduce])(src, **EXACT)

    @extremum.defjvp
    def change_of(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        (self, src, places), (self_change, src_change, _) = primals, tangents
        result = extremum(self, src, places)
        best, src_best = self == result, src == at(result, places).get(**EXACT)
        count = at(best.astype(result.dtype), places).add(src_best.astype(result.dtype))
        change = jnp.where(best, self_change, 0)
        if not include_self:
            change = jnp.where(reached(self, places), 0, change)
        change = at(change, places).add(jnp.where(src_best, src_change, 0), **EXACT)
        return result, change / count

    return extremum(self, src, place[rows:])


@lower("scatter_reduce.two")
def scatter_reduce(
    self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> jax.Array:
    index = jnp.atleast_1d(index)
    if not index.size:
        return self
    target = jnp.atleast_1d(self)
    places = _places(dim, index)
    wide = opmath(self.dtype)
    result = _reduced(target, places, _extent(src, index), reduce, include_self, wide)
    return result.reshape(self.shape)


@lower("index_reduce")
def index_reduce(
    self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> jax.Array:
    rows, place = along(self, dim, index)
    source = jnp.atleast_1d(source)
    # Unlike `scatter_reduce`, torch reduces half types here in their own precision.
    return _reduced(rows, place, source, reduce, include_self, self.dtype).reshape(self.shape)
