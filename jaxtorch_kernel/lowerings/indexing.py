"""Reading and writing by index tensors: `x[i, j]`, `x[mask] = v`, `index_select`, `take`, `put`, masks.

Indices out of range. torch raises IndexError on the CPU and fails an assertion on cuda, both after checking every
index. Here nothing waits for the indices: a read returns the nearest valid element, and a write out of range is
dropped. Negative indices count from the end where torch allows them; elsewhere they are out of range (`EXACT`).
`config(check="indices")` checks all indices (`dispatch/value_checks.py`).

Boolean masks. The size of `x[mask]` depends on the mask, so `nonzero` converts the mask to index tensors, which waits
for its values. A write of a single value through one mask is a `where`, and does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .promote import cast
from .registry import lower

Tensor = torch.Tensor
IN_BOUNDS = "promise_in_bounds"
# For operators whose indices do not count from the end: `x.at[i].get(**EXACT)`.
EXACT: dict[str, Any] = {"mode": IN_BOUNDS, "wrap_negative_indices": False}


def narrow(index: Any) -> jax.Array:
    """An index in 32 bits, which every dimension that XLA can address fits."""
    return index.astype(np.int32)


def _subscript(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else narrow(i) for i in indices)


# -- subscripts ------------------------------------------------------------------------------------------------------


@lower("index.Tensor", "_unsafe_index.Tensor")
def index(self: Any, indices: Any) -> jax.Array:
    return self.at[_subscript(indices)].get(mode=IN_BOUNDS)


@lower("index_put", "_index_put_impl", "_unsafe_index_put", meta=False)
def index_put(
    self: Any, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False
) -> jax.Array:
    if self.dtype != values.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {self.dtype} for the destination and {values.dtype} for the source."
        )
    masks = [d for d, i in enumerate(indices) if i is not None and i.dtype == np.bool_]
    if masks:
        (d,) = masks
        mask = indices[d]
        new = self + values if accumulate else values
        # The mask covers dimensions d, d + 1, ...; the value those behind them.
        return jnp.where(mask.reshape(mask.shape + (1,) * (self.ndim - d - mask.ndim)), new, self)
    place = self.at[_subscript(indices)]
    if not accumulate:
        return place.set(values, mode=IN_BOUNDS)
    return place.add(values, mode=IN_BOUNDS)


def _clamped(self: Any, indices: Any) -> tuple[Any, ...]:
    return tuple(
        slice(None) if i is None else jnp.clip(narrow(i), -n, n - 1)
        for i, n in zip(indices, self.shape, strict=False)
    )


@lower("_unsafe_masked_index")
def unsafe_masked_index(self: Any, mask: Any, indices: Any, fill: Any) -> jax.Array:
    found = self.at[_clamped(self, indices)].get(mode=IN_BOUNDS)
    return jnp.where(mask, found, cast(fill, self.dtype))


@lower("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put(self: Any, mask: Any, indices: Any, values: Any) -> jax.Array:
    added = jnp.where(mask, values, jnp.zeros((), values.dtype))
    return self.at[_clamped(self, indices)].add(added.astype(self.dtype), mode=IN_BOUNDS)


# -- one dimension ---------------------------------------------------------------------------------------------------


def along(self: Any, dim: int, index: Any) -> tuple[Any, tuple[Any, ...]]:
    """`self` with at least one dimension, and the subscript for `index` in dimension `dim`."""
    self = jnp.atleast_1d(self)
    return self, (*[slice(None)] * (dim % self.ndim), narrow(jnp.atleast_1d(index)))


@lower("index_select")
def index_select(self: Any, dim: int, index: Any) -> jax.Array:
    rows, place = along(self, dim, index)
    found = rows.at[place].get(**EXACT)
    return found if self.ndim else found.reshape(())


@lower("index_add")
def index_add(self: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> jax.Array:
    rows, place = along(self, dim, index)
    source = _source(source, rows, dim, index) * cast(alpha, self.dtype)
    return rows.at[place].add(source, **EXACT).reshape(self.shape)


@lower("index_copy")
def index_copy(self: Any, dim: int, index: Any, source: Any) -> jax.Array:
    rows, place = along(self, dim, index)
    source = _source(source, rows, dim, index)
    return rows.at[place].set(source, **EXACT).reshape(self.shape)


@lower("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Any, dim: int, index: Any, value: Any) -> jax.Array:
    rows, place = along(self, dim, index)
    return rows.at[place].set(cast(value, self.dtype), mode=IN_BOUNDS).reshape(self.shape)


def _source(source: Any, rows: Any, dim: int, index: Any) -> Any:
    """The source in the shape of the indexed rows; torch accepts a zero-dimensional source for one element."""
    dim %= rows.ndim
    return source.reshape(*rows.shape[:dim], index.size, *rows.shape[dim + 1 :])


# -- the flattened tensor --------------------------------------------------------------------------------------------


@lower("take")
def take(self: Any, index: Any) -> jax.Array:
    return self.reshape(-1).at[narrow(index)].get(mode=IN_BOUNDS)


@lower("put")
def put(self: Any, index: Any, source: Any, accumulate: bool = False) -> jax.Array:
    place = self.reshape(-1).at[narrow(index).reshape(-1)]
    source = source.reshape(-1)
    new = place.add(source, mode=IN_BOUNDS) if accumulate else place.set(source, mode=IN_BOUNDS)
    return new.reshape(self.shape)


def _rank(mask: Any) -> jax.Array:
    """For each true element of a mask how many came before it."""
    return jnp.cumsum(mask.reshape(-1), dtype=np.int32) - 1


@lower("masked_scatter")
def masked_scatter(self: Any, mask: Any, source: Any) -> jax.Array:
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape)
    if not source.size:
        return self
    chosen = source.reshape(-1).at[_rank(mask)].get(mode="clip").reshape(shape)
    return jnp.where(mask, chosen, self)


@lower("masked_scatter_backward")
def masked_scatter_backward(grad_output: Any, mask: Any, sizes: Any) -> jax.Array:
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    empty = jnp.zeros(int(np.prod(sizes)), grad_output.dtype)
    # Elements that are not taken go behind the end, where writes are dropped.
    places = jnp.where(mask, _rank(mask), empty.size)
    return empty.at[places].set(grad_output.reshape(-1), mode="drop").reshape(sizes)
