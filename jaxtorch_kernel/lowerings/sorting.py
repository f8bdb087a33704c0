"""Sorting, order statistics, and searching in sorted rows.

NaN is the largest value, as in torch. Every sort here is stable, including descending ones: of equal elements, the one
with the smallest index comes first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .nondifferentiable import selected
from .promote import kind_of, promote
from .registry import lower
from .types import Array, Operand, Pair


def sort_with_index(x: Array, axis: int, descending: bool = False) -> Pair:
    """Values and int32 indices in stable order."""
    if descending:
        # Sorting the reversed array and reversing the result keeps equal elements in their original order.
        x = jnp.flip(x, axis)
    if _fits_32_bits(x.dtype):
        values, index = jax.lax.platform_dependent(
            x,
            cpu=functools.partial(_sort_packed, axis=axis),
            default=functools.partial(_sort_pairs, axis=axis),
        )
    else:
        values, index = _sort_pairs(x, axis)
    if descending:
        values = jnp.flip(values, axis)
        index = x.shape[axis] - 1 - jnp.flip(index, axis)
    return values, index


def _sort_pairs(x: Array, axis: int) -> Pair:
    index = jax.lax.broadcasted_iota(np.int32, x.shape, axis)
    values, index = jax.lax.sort((x, index), dimension=axis, is_stable=True, num_keys=1)
    return values, index


def _sort_packed(x: Array, axis: int) -> Pair:
    """Sort int64 numbers with the key in the high bits and the index in the low bits.

    On a CPU this is eight times as fast as sorting pairs.
    """
    index = jax.lax.broadcasted_iota(np.int64, x.shape, axis)
    packed = jax.lax.sort((_sort_key(x) << 32) | index, dimension=axis)
    order = packed.astype(np.int32)
    return jnp.take_along_axis(x, order, axis), order


def _fits_32_bits(dtype: np.dtype) -> bool:
    return dtype.itemsize <= 4 and dtype != np.uint32


def _sort_key(x: Array) -> Array:
    """int64 numbers of 32 bits in the order of the values; 0.0 equals -0.0, and all NaNs are equal."""
    if kind_of(x.dtype) != "f":
        return x.astype(np.int64)
    x = x.astype(np.float32)
    x = jnp.where(x == 0, 0, jnp.where(x != x, np.float32(np.nan), x))
    bits = jax.lax.bitcast_convert_type(x, np.int32)
    return jnp.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)


def as_row(x: Array, dim: int) -> tuple[Array, int]:
    """The tensor with at least one dimension, and the axis that `dim` means.

    Raises:
        IndexError: the dimension does not exist; the CPU kernel provides the message.
    """
    if not -max(x.ndim, 1) <= dim < max(x.ndim, 1):
        raise IndexError("Dimension out of range")
    return (x, dim % x.ndim) if x.ndim else (x.reshape(1), 0)


@lower("sort")
def sort(self: Array, dim: int = -1, descending: bool = False) -> Pair:
    row, axis = as_row(self, dim)
    values, index = sort_with_index(row, axis, descending)
    return values.reshape(self.shape), index.reshape(self.shape)


@lower("sort.stable")
def sort_stable(
    self: Array, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Pair:
    return sort(self, dim, descending)


@lower("topk")
def topk(self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    if not self.ndim:
        return self, jnp.zeros((), np.int32)
    axis = dim % self.ndim
    if largest and kind_of(self.dtype) == "f":
        # XLA's own top_k orders NaN by their sign bit.
        positive = jnp.where(jnp.isnan(self), jnp.asarray(np.nan, self.dtype), self)
        best = jax.lax.top_k(jnp.moveaxis(positive, axis, -1), k)
        return jnp.moveaxis(best[0], -1, axis), jnp.moveaxis(best[1], -1, axis)
    values, index = sort_with_index(self, axis, largest)
    return (
        jax.lax.slice_in_dim(values, 0, k, axis=axis),
        jax.lax.slice_in_dim(index, 0, k, axis=axis),
    )


# -- order statistics ------------------------------------------------------------------------------


def _pick(pair: Pair, position: Array, self: Array, axis: int, keepdim: bool) -> Pair:
    """The element of each sorted row at its `position`, an array with a dimension of 1 in place of the row."""
    values, index = (jnp.take_along_axis(x, position, axis) for x in pair)
    if not self.ndim:
        return values.reshape(()), index.reshape(())
    return (values, index) if keepdim else (values.squeeze(axis), index.squeeze(axis))


def _nan_count(x: Array, axis: int) -> Array:
    return jnp.sum(x != x, axis, dtype=np.int32, keepdims=True)


@lower("median.dim")
def median_dim(self: Array, dim: int, keepdim: bool = False) -> Pair:
    row, axis = as_row(self, dim)
    n, nans = row.shape[axis], _nan_count(row, axis)
    position = jnp.where(nans > 0, n - nans, (n - 1) // 2)
    return _pick(sort_with_index(row, axis), position, self, axis, keepdim)


@lower("nanmedian.dim")
def nanmedian_dim(self: Array, dim: int, keepdim: bool = False) -> Pair:
    row, axis = as_row(self, dim)
    position = jnp.maximum(row.shape[axis] - _nan_count(row, axis) - 1, 0) // 2
    return _pick(sort_with_index(row, axis), position, self, axis, keepdim)


def _of_all(over_dim: Callable[[Array, int], Pair]) -> Callable[[Array], Array]:
    def over_all(self: Array) -> Array:
        if not self.size:
            empty = np.nan if kind_of(self.dtype) == "f" else np.iinfo(self.dtype).min
            return jnp.full((), empty, self.dtype)
        return selected(self, lambda x: over_dim(x.reshape(-1), 0)[0])

    return over_all


lower("median")(_of_all(median_dim))
lower("nanmedian")(_of_all(nanmedian_dim))


@lower("kthvalue")
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    row, axis = as_row(self, dim)
    position = jnp.full([1 if a == axis else n for a, n in enumerate(row.shape)], k - 1, np.int32)
    return _pick(sort_with_index(row, axis), position, self, axis, keepdim)


@lower("mode")
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> Pair:
    row, axis = as_row(self, dim)
    values, order = sort_with_index(row, axis)
    index = jax.lax.broadcasted_iota(np.int32, row.shape, axis)
    starts = jnp.roll(values, 1, axis) != values
    run_start = jax.lax.cummax(jnp.where(starts | (index == 0), index, 0), axis)
    # The first longest run has the smallest value; the count peaks at the last element of the run.
    position = jax.lax.argmax(index - run_start, axis, np.int32)
    return _pick((values, order), jnp.expand_dims(position, axis), self, axis, keepdim)


# -- searching -------------------------------------------------------------------------------------


def search(rows: Array, values: Array, right: bool) -> Array:
    """The position of each value in sorted rows (int32), by bisection along the last axis.

    Args:
        rows: one row for all values, or an array with their leading dimensions.
    """
    count = rows.shape[-1]
    if not count:
        return jnp.zeros(values.shape, np.int32)

    def halve(_: int, bounds: Pair) -> Pair:
        low, high = bounds
        middle = (low + high) // 2
        # Clamped for finished bisections, which may end at low == high == count.
        index = jnp.minimum(middle, count - 1)
        element = rows[index] if rows.ndim == 1 else jnp.take_along_axis(rows, index, -1)
        # The negation puts NaN after all elements.
        after = ~(element > values if right else element >= values)
        active = low < high
        return (
            jnp.where(active & after, middle + 1, low),
            jnp.where(active & ~after, middle, high),
        )

    start = (jnp.zeros(values.shape, np.int32), jnp.full(values.shape, count, np.int32))
    return jax.lax.fori_loop(0, count.bit_length(), halve, start)[0]


@lower("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Array,
    self: Operand,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1)
    rows, values = promote(sorted_sequence, self)
    return search(rows, values, right or side == "right")


@lower("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    self: Operand, boundaries: Array, out_int32: bool = False, right: bool = False
) -> Array:
    return searchsorted(boundaries, self, out_int32, right)


@lower("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    elements: Operand, test_elements: Operand, assume_unique: bool = False, invert: bool = False
) -> Array:
    elements, tests = promote(elements, test_elements)
    tests = tests.reshape(-1)
    if tests.size <= 16:
        member = (elements[..., None] == tests).any(-1)
    else:
        # NaN equals nothing, and the bisection cannot order it: replace it by another member.
        tests = jnp.where(tests != tests, jnp.nanmin(tests), tests)
        tests, _ = sort_with_index(tests, 0)
        slot = jnp.minimum(search(tests, elements, False), tests.size - 1)
        member = tests[slot] == elements
    return ~member if invert else member


@lower("nonzero_static")
def nonzero_static(self: Array, size: int, fill_value: int = -1) -> Array:
    if not self.ndim:
        return jnp.zeros((size, 0), np.int64)
    return jnp.stack(jnp.nonzero(self != 0, size=size, fill_value=fill_value), 1)
