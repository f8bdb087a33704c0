"""Reading and writing by index tensors: `x[i, j]`, `x[mask] = v`, `index_select`, `take`, `put`, masks.

Indices out of range: torch checks every index, and raises IndexError on the CPU or fails an assertion on cuda. This
device does not wait for the indices: a read returns the nearest valid element, and a write is dropped. Negative indices
count from the end where torch allows them; elsewhere they are out of range (`EXACT`). `config(check="indices")` checks
all indices (`dispatch/value_checks.py`).

Boolean masks: the size of `x[mask]` depends on the mask, so `nonzero` converts the mask to index tensors, which waits
for its values. A write of a single value through one mask is a `where`, and does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import jax.numpy as jnp
import numpy as np

from .promote import cast, kind_of
from .registry import lower
from .types import Array, Operand, Scalar, Subscript

IN_BOUNDS = "promise_in_bounds"


class IndexMode(TypedDict, total=False):
    """How `x.at[...]` treats indices out of range."""

    mode: str
    wrap_negative_indices: bool


# For operators in which negative indices do not count from the end: `x.at[i].get(**EXACT)`.
EXACT: IndexMode = {"mode": IN_BOUNDS, "wrap_negative_indices": False}


def narrow(index: Array) -> Array:
    """An index as int32, which is enough for every dimension that XLA can address."""
    return index.astype(np.int32)


def added(x: Array, subscript: Subscript, values: Array, mode: IndexMode) -> Array:
    """`x.at[subscript].add(values, **mode)`; the sum of booleans is their logical or, as in torch."""
    elements = x.at[subscript]
    write = elements.max if x.dtype == np.bool_ else elements.add
    return write(values, **mode)


def _subscript(indices: Sequence[Array | None]) -> Subscript:
    return tuple(slice(None) if i is None else narrow(i) for i in indices)


# -- subscripts ------------------------------------------------------------------------------------


@lower("index.Tensor", "_unsafe_index.Tensor")
def index(self: Array, indices: Sequence[Array | None]) -> Array:
    return self.at[_subscript(indices)].get(mode=IN_BOUNDS)


@lower("index_put", "_index_put_impl", "_unsafe_index_put", meta=False)
def index_put(
    self: Array,
    indices: Sequence[Array | None],
    values: Array,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Array:
    masks = [(d, i) for d, i in enumerate(indices) if i is not None and i.dtype == np.bool_]
    if masks and values.size == 1 and not accumulate and kind_of(values.dtype) != "c":
        values = cast(
            values, self.dtype
        )  # torch runs `masked_fill`, which takes a number of any dtype
    if self.dtype != values.dtype:
        raise TypeError(
            "dtypes differ"
        )  # torch's error is raised for it, of the shapes or the dtypes
    if masks:
        ((d, mask),) = masks
        new = self + values if accumulate else values
        # The mask covers dimensions d, d + 1, ...; the value covers the dimensions after them.
        return jnp.where(mask.reshape(mask.shape + (1,) * (self.ndim - d - mask.ndim)), new, self)
    if accumulate:
        return added(self, _subscript(indices), values, {"mode": IN_BOUNDS})
    return self.at[_subscript(indices)].set(values, mode=IN_BOUNDS)


def _clamped(self: Array, indices: Sequence[Array | None]) -> Subscript:
    return tuple(
        slice(None) if i is None else jnp.clip(narrow(i), -n, n - 1)
        for i, n in zip(indices, self.shape, strict=False)
    )


@lower("_unsafe_masked_index")
def unsafe_masked_index(
    self: Array, mask: Array, indices: Sequence[Array | None], fill: Scalar
) -> Array:
    elements = self.at[_clamped(self, indices)].get(mode=IN_BOUNDS)
    return jnp.where(mask, elements, cast(fill, self.dtype))


@lower("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put(
    self: Array, mask: Array, indices: Sequence[Array | None], values: Array
) -> Array:
    added = jnp.where(mask, values, jnp.zeros((), values.dtype))
    return self.at[_clamped(self, indices)].add(added.astype(self.dtype), mode=IN_BOUNDS)


# -- one dimension ---------------------------------------------------------------------------------


def along(self: Array, dim: int, index: Array) -> tuple[Array, Subscript]:
    """`self` with at least one dimension, and the subscript of `index` in dimension `dim`."""
    self = jnp.atleast_1d(self)
    return self, (*[slice(None)] * (dim % self.ndim), narrow(jnp.atleast_1d(index)))


@lower("index_select")
def index_select(self: Array, dim: int, index: Array) -> Array:
    rows, subscript = along(self, dim, index)
    selected = rows.at[subscript].get(**EXACT)
    return selected if self.ndim else selected.reshape(())


@lower("index_add")
def index_add(self: Array, dim: int, index: Array, source: Array, alpha: Scalar = 1) -> Array:
    rows, subscript = along(self, dim, index)
    source = _source(source, rows, dim, index) * cast(alpha, self.dtype)
    return added(rows, subscript, source, EXACT).reshape(self.shape)


@lower("index_copy")
def index_copy(self: Array, dim: int, index: Array, source: Array) -> Array:
    rows, subscript = along(self, dim, index)
    source = _source(source, rows, dim, index)
    return rows.at[subscript].set(source, **EXACT).reshape(self.shape)


@lower("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Array, dim: int, index: Array, value: Operand) -> Array:
    rows, subscript = along(self, dim, index)
    return rows.at[subscript].set(cast(value, self.dtype), mode=IN_BOUNDS).reshape(self.shape)


def _source(source: Array, rows: Array, dim: int, index: Array) -> Array:
    """The source in the shape of the indexed rows; torch accepts a 0-dim source for one element."""
    dim %= rows.ndim
    return source.reshape(*rows.shape[:dim], index.size, *rows.shape[dim + 1 :])


# -- the flattened tensor --------------------------------------------------------------------------


@lower("take")
def take(self: Array, index: Array) -> Array:
    return self.reshape(-1).at[narrow(index)].get(mode=IN_BOUNDS)


@lower("put")
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    flat, at = self.reshape(-1), narrow(index).reshape(-1)
    if accumulate:
        return added(flat, (at,), source.reshape(-1), {"mode": IN_BOUNDS}).reshape(self.shape)
    return flat.at[at].set(source.reshape(-1), mode=IN_BOUNDS).reshape(self.shape)


def _rank(mask: Array) -> Array:
    """For each true element of a mask, the number of true elements before it."""
    return jnp.cumsum(mask.reshape(-1), dtype=np.int32) - 1


@lower("masked_scatter")
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape)
    if not source.size:
        return self
    chosen = source.reshape(-1).at[_rank(mask)].get(mode="clip").reshape(shape)
    return jnp.where(mask, chosen, self)


@lower("masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Sequence[int]) -> Array:
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    empty = jnp.zeros(int(np.prod(sizes)), grad_output.dtype)
    # Elements outside the mask get an index past the end, where writes are dropped.
    index = jnp.where(mask, _rank(mask), empty.size)
    return empty.at[index].set(grad_output.reshape(-1), mode="drop").reshape(sizes)
