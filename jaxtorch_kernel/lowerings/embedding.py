"""Embedding tables: look-up, bags (look-up and reduce), renormalization, and their gradients.

Gradients are dense. `sparse=True` requests a sparse gradient tensor, which the device does not support.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .indexing import EXACT, narrow
from .promote import cast, widen
from .registry import lower
from .types import Array, Operand, Pair

SUM, MEAN, MAX = 0, 1, 2


@lower("embedding")
def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    rows = weight.at[narrow(indices)].get(**EXACT)
    if scale_grad_by_freq:
        frequency = _counts(narrow(indices), weight.shape[0]).at[narrow(indices)].get(**EXACT)
        rows = _with_gradient_over(rows, frequency[..., None].astype(rows.dtype))
    if padding_idx < 0:
        return rows
    # The row of the padding gets no gradient: by torch's autograd in eager calls, by `stop_gradient` in captured code.
    return jnp.where((indices == padding_idx)[..., None], jax.lax.stop_gradient(rows), rows)


@jax.custom_jvp
def _with_gradient_over(x: Array, divisor: Array) -> Array:
    """`x`, with its gradient divided by `divisor`."""
    return x


@_with_gradient_over.defjvp
def _(primals: Pair, tangents: Pair) -> Pair:
    return primals[0], tangents[0] / primals[1]


def _counts(indices: Array, size: int) -> Array:
    return jnp.zeros(size, np.int32).at[indices].add(1, **EXACT)


def _table_gradient(
    rows: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    """Sum the gradient's rows into a table, in their opmath dtype."""
    (rows,) = widen(rows)
    scale = indices != padding_idx
    if scale_grad_by_freq:
        frequency = _counts(indices, num_weights).at[indices].get(**EXACT)
        rows = rows / jnp.maximum(frequency, 1).astype(rows.dtype)[:, None]
    rows = jnp.where(scale[:, None], rows, 0)
    table = jnp.zeros((num_weights, rows.shape[-1]), rows.dtype)
    return table.at[indices].add(rows, **EXACT)


@lower("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    flat = narrow(indices).reshape(-1)
    rows = grad_output.reshape(flat.size, grad_output.shape[-1])
    return _table_gradient(rows, flat, num_weights, padding_idx, scale_grad_by_freq)


@lower("embedding_renorm")
def embedding_renorm(self: Array, indices: Array, max_norm: Operand, norm_type: Operand) -> Array:
    flat = narrow(indices).reshape(-1)
    (rows,) = widen(self.at[flat].get(**EXACT))
    norm_type, max_norm = cast(norm_type, rows.dtype), cast(max_norm, rows.dtype)
    sums = jnp.sum(jnp.abs(rows) ** norm_type, -1, keepdims=True) ** (1 / norm_type)
    largest = jnp.max(jnp.abs(rows), -1, keepdims=True)
    norms = jnp.where(jnp.isinf(norm_type), largest, sums)

    def rounded(x: Array) -> Array:
        """Rounded to the dtype of the table, as torch's norm and scale are."""
        return x.astype(self.dtype).astype(rows.dtype)

    norms = rounded(norms)
    shrunk = jnp.where(norms > max_norm, rows * rounded(max_norm / (norms + 1e-7)), rows)
    return self.at[flat].set(shrunk.astype(self.dtype), **EXACT)


# -- bags ------------------------------------------------------------------------------------------


def _bags(indices: Array, offsets: Array, include_last_offset: bool) -> tuple[Array, int]:
    """The bag that each index belongs to, and the number of bags."""
    count = offsets.shape[0] - int(include_last_offset)
    position = jnp.arange(indices.shape[0], dtype=np.int32)
    return jnp.searchsorted(narrow(offsets[:count]), position, side="right") - 1, count


def _weighted(rows: Array, per_sample_weights: Array | None) -> Array:
    """The row of each index, times its weight."""
    if per_sample_weights is None:
        return rows
    return rows * per_sample_weights.astype(rows.dtype)[:, None]


def _averaged(sums: Array, sizes: Array) -> Array:
    """The sum of each bag, divided by its number of rows."""
    return sums / jnp.maximum(sizes, 1).astype(sums.dtype)[:, None]


@lower("_embedding_bag", "_embedding_bag_forward_only", meta=False)
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, ...]:
    """The bags and what the gradient needs: the bag of each index, the counts, and the chosen rows for "max"."""
    bag, count = _bags(indices, offsets, include_last_offset)
    index_dtype = jnp.promote_types(indices.dtype, offsets.dtype)
    index = narrow(indices)
    counted = index != (padding_idx % weight.shape[0] if padding_idx >= 0 else -1)
    rows = _weighted(widen(weight.at[index].get(**EXACT))[0], per_sample_weights)
    sizes = jnp.zeros(count, np.int32).at[bag].add(counted.astype(np.int32), mode="drop")
    chosen = jnp.zeros(count, index_dtype)
    shape = (count, weight.shape[1])
    if mode == MAX:
        rows = jnp.where(counted[:, None], rows, -np.inf)
        highest = jnp.full(shape, -np.inf, rows.dtype).at[bag].max(rows, mode="drop")
        # The first index in the bag that reaches the maximum.
        position = jnp.arange(index.size, dtype=np.int32)[:, None]
        reaches = jnp.where(counted[:, None] & (rows == highest[bag]), position, index.size)
        first = jnp.full(shape, index.size, np.int32).at[bag].min(reaches, mode="drop")
        # Read the row instead of reducing: then only this row gets a gradient, and equal ones do not.
        taken = jnp.take_along_axis(jnp.pad(rows, ((0, 1), (0, 0))), first, 0)
        out = jnp.where(jnp.isnan(highest), highest, taken)
        out = jnp.where((sizes > 0)[:, None], out, 0)
        padded = jnp.append(index, 0)
        chosen = padded[first].astype(index_dtype)
    else:
        rows = jnp.where(counted[:, None], rows, 0)
        out = jnp.zeros(shape, rows.dtype).at[bag].add(rows, mode="drop")
        if mode == MEAN:
            out = _averaged(out, sizes)
    return (
        out.astype(weight.dtype),
        bag.astype(index_dtype),
        sizes.astype(index_dtype),
        chosen,
    )


@lower("_embedding_bag_dense_backward", meta=False)
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    (wide,) = widen(grad)
    if mode == MAX:
        taken = jnp.where((bag_size > 0)[:, None], wide, 0)
        table = jnp.zeros((num_weights, grad.shape[1]), wide.dtype)
        columns = jnp.arange(grad.shape[1], dtype=np.int32)[None]
        table = table.at[narrow(maximum_indices), columns].add(taken, **EXACT)
        return table.astype(grad.dtype)
    if mode == MEAN:
        wide = _averaged(wide, bag_size)
    rows = _weighted(wide[narrow(offset2bag)], per_sample_weights)
    table = _table_gradient(rows, narrow(indices), num_weights, padding_idx, scale_grad_by_freq)
    return table.astype(grad.dtype)


@lower("_embedding_bag_backward", meta=False)
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    *rest: Any,
) -> Array:
    if sparse:
        raise NotImplementedError(
            "the jax device does not support sparse gradients: create the embedding with sparse=False"
        )
    bags = (offset2bag, bag_size, maximum_indices)
    options = (num_weights, scale_grad_by_freq, mode, *rest)
    return embedding_bag_dense_backward(grad, indices, *bags, *options)


@lower("_embedding_bag_per_sample_weights_backward", meta=False)
def embedding_bag_per_sample_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    rows, bags = widen(weight.at[narrow(indices)].get(**EXACT), grad[narrow(offset2bag)])
    dots = jnp.sum(rows * bags, -1)
    return jnp.where(indices != padding_idx, dots, 0).astype(grad.dtype)
