"""Views: how a tensor's (size, stride, offset) reads and writes its buffer, as JAX operations.

A buffer is a row of elements in memory order. The strides of the view and of the buffer's shape split that row into
*levels*, as the digits of a mixed-radix number do. Levels are listed outermost first, each with a size and a unit (the
stride of one step). If the units divide each other, then

    read  = reshape(buffer, levels) -> slice each level -> merge and permute levels -> broadcast
    write = the inverse, ending in an update of that slice

Each dimension of the view covers a run of levels: all of the inner ones, and `take` elements of the outermost. A level
that no dimension covers is read at a single index. The starts of the slices follow from the offset and are run-time
operands, so `x[i]` in a loop is one program. A stride of 0 is a broadcast.

Other views (overlapping windows of `unfold`, steps that do not divide) are read by gather and written by scatter,
with the offset as the only start. All of this happens inside the program of the operator that reads or writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .buffer import Spec, buffer_of
from .dtypes import to_numpy

Shape = tuple[int, ...]
Starts = (
    jax.Array | np.ndarray | Sequence[int]
)  # of a view's slices; a run-time operand of programs


def contiguous_strides(size: Sequence[int]) -> Shape:
    """Row-major strides of `size` in elements. As in torch, a size of 0 counts as 1.

    Example:
        >>> contiguous_strides((2, 3, 4))
        (12, 4, 1)
    """
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def memory_order(size: Shape, stride: Shape) -> Shape | None:
    """The permutation that lists the dimensions outermost first if the geometry is dense, else None.

    In a dense geometry the elements fill a row without gaps or overlap, as in channels-last and transposed tensors.
    """
    order = tuple(sorted(range(len(size)), key=lambda d: (-stride[d], size[d] == 1, d)))
    step = 1
    for d in reversed(order):
        if size[d] == 1:
            continue
        if stride[d] != step:
            return None
        step *= size[d]
    return order


def is_row_major(size: Shape, stride: Shape) -> bool:
    """Whether the strides are row-major, ignoring dimensions of one element."""
    step = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n != 1:
            if s != step:
                return False
            step *= max(n, 1)
    return True


def covers_buffer(tensor: torch.Tensor, spec: Spec | None = None) -> bool:
    """Whether a tensor is all of its buffer: each element of the buffer is one element of the tensor.

    The dimensions may be in any order. `is_array` is stricter.

    Args:
        tensor: of the device.
        spec: the buffer's, by default as it is now.
    """
    spec = buffer_of(tensor).spec if spec is None else spec
    if spec.numel != tensor.numel() or tensor.storage_offset():
        return False
    return tensor.is_contiguous() or memory_order(tuple(tensor.shape), tensor.stride()) is not None


def is_array(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its buffer's array: same dtype, shape and order, so that reading it needs no operation."""
    return plan(buffer_of(tensor).spec, tensor.dtype, tuple(tensor.shape), tensor.stride()) is None


def as_dtype(flat: jax.Array, dtype: np.dtype) -> jax.Array:
    """The same bytes read as another dtype; `flat` has one dimension."""
    if flat.dtype == dtype:
        return flat
    if flat.dtype.kind == "c":
        flat = jnp.stack([flat.real, flat.imag], axis=-1).reshape(-1)
        return as_dtype(flat, dtype)
    if dtype.kind == "c":
        parts = as_dtype(flat, np.dtype(f"f{dtype.itemsize // 2}")).reshape(-1, 2)
        return lax.complex(parts[:, 0], parts[:, 1])
    if flat.dtype == np.bool_:
        return as_dtype(flat.astype(np.uint8), dtype)
    if dtype == np.bool_:
        return as_dtype(flat, np.dtype(np.uint8)) != 0
    ratio = dtype.itemsize // flat.dtype.itemsize
    if ratio > 1:
        flat = flat.reshape(-1, ratio)
    return lax.bitcast_convert_type(flat, dtype).reshape(-1)


class ViewPlan:
    """How to read and write views of one geometry over buffers of one Spec.

    `starts(offset)` gives the run-time operands (int32), or None if the plan does not apply to that offset; the plan
    `fallback` then does.
    """

    fallback: ViewPlan

    def __init__(self, spec: Spec, dtype: np.dtype, size: Shape, stride: Shape):
        self.spec, self.dtype, self.size, self.stride = spec, dtype, size, stride
        self.numel = spec.nbytes // dtype.itemsize
        self.fallback = self

    count = 0  # how many starts the plan takes

    def starts(self, offset: int) -> Shape | None:
        """The starts of the slices for this offset."""
        raise NotImplementedError

    def read(self, base: jax.Array, starts: Starts) -> jax.Array:
        """The view's values, from the buffer's array."""
        raise NotImplementedError

    def write(self, base: jax.Array, value: jax.Array, starts: Starts) -> jax.Array:
        """The buffer's array after `value` is written to the view."""
        raise NotImplementedError

    def _elements(self, base: jax.Array) -> jax.Array:
        """The buffer's elements in the view's dtype."""
        if base.dtype == self.dtype:
            return base
        return as_dtype(base.reshape(-1), self.dtype)

    def _restore(self, elements: jax.Array) -> jax.Array:
        """The elements in the buffer's dtype and shape again."""
        if elements.dtype != self.spec.dtype:
            elements = as_dtype(elements.reshape(-1), self.spec.dtype)
        return elements.reshape(self.spec.shape)


class Gather(ViewPlan):
    """Any geometry, element by element."""

    count = 1

    def starts(self, offset: int) -> Shape | None:
        return (offset,)

    def _indices(self, starts: Starts) -> jax.Array:
        index = jnp.asarray(starts[0])
        for d, (n, s) in enumerate(zip(self.size, self.stride, strict=True)):
            if n > 1:
                shape = [1] * len(self.size)
                shape[d] = n
                index = index + (jnp.arange(n, dtype=np.int32) * np.int32(s)).reshape(shape)
        return jnp.broadcast_to(index, self.size)

    def read(self, base: jax.Array, starts: Starts) -> jax.Array:
        flat = self._elements(base).reshape(-1)
        return flat.at[self._indices(starts)].get(mode="promise_in_bounds")

    def write(self, base: jax.Array, value: jax.Array, starts: Starts) -> jax.Array:
        flat = self._elements(base).reshape(-1)
        value = jnp.broadcast_to(value, self.size)
        return self._restore(flat.at[self._indices(starts)].set(value, mode="promise_in_bounds"))


class Box(ViewPlan):
    """A slice of the levels, regrouped: most views are of this kind."""

    def __init__(
        self,
        spec: Spec,
        dtype: np.dtype,
        size: Shape,
        stride: Shape,
        levels: list[tuple[int, int]],  # (size, unit), outermost first
        takes: list[int],
        groups: list[tuple[int, list[int]]],  # (dimension of the view, its levels outermost first)
    ):
        super().__init__(spec, dtype, size, stride)
        self.levels = levels
        self.takes = takes
        self.groups = groups
        self.sliced = [i for i, (n, _) in enumerate(levels) if takes[i] < n]
        self.count = len(self.sliced)
        self.level_shape = tuple(n for n, _ in levels)
        # After the permutation, levels that no dimension covers come first, each with one element.
        covered = [i for _, members in groups for i in members]
        free = [i for i in range(len(levels)) if i not in set(covered)]
        self.permutation = (*free, *covered)
        self.grouped_shape = tuple(size[d] for d, _ in groups)
        self.dims = [d for d, _ in groups]

    def starts(self, offset: int) -> Shape | None:
        result = []
        for i, (n, unit) in enumerate(self.levels):
            index, offset = divmod(offset, unit)
            if index + self.takes[i] > n:
                return None
            if self.takes[i] < n:
                result.append(index)
        return tuple(result)

    def _all_starts(self, starts: Starts) -> list[jax.Array | np.integer | int]:
        """The start of each level; those that are not sliced start at 0."""
        result: list[jax.Array | np.integer | int] = [np.int32(0)] * len(self.levels)
        for position, i in enumerate(self.sliced):
            result[i] = starts[position]
        return result

    def read(self, base: jax.Array, starts: Starts) -> jax.Array:
        x = self._elements(base).reshape(self.level_shape)
        if self.sliced:
            x = lax.dynamic_slice(x, self._all_starts(starts), self.takes)
        x = x.transpose(self.permutation).reshape(self.grouped_shape)
        # The groups are in memory order; put them in the view's order, then broadcast.
        order = sorted(range(len(self.dims)), key=self.dims.__getitem__)
        x = x.transpose(order)
        return lax.broadcast_in_dim(x, self.size, sorted(self.dims))

    def write(self, base: jax.Array, value: jax.Array, starts: Starts) -> jax.Array:
        # A dimension of stride 0 takes the last value, as if a row-major loop had written them all.
        value = jnp.broadcast_to(value, self.size)
        repeated = [d for d in range(len(self.size)) if d not in self.dims]
        for d in reversed(repeated):
            value = lax.index_in_dim(value, self.size[d] - 1, d, keepdims=False)
        remaining = sorted(self.dims)
        value = value.transpose([remaining.index(d) for d in self.dims])
        free = len(self.levels) - sum(len(members) for _, members in self.groups)
        shape = [1] * free + [self.takes[i] for _, members in self.groups for i in members]
        inverse = np.argsort(self.permutation)
        value = value.reshape(shape).transpose(inverse)
        if self.sliced:
            x = self._elements(base).reshape(self.level_shape)
            value = lax.dynamic_update_slice(x, value, self._all_starts(starts))
        return self._restore(value)


def _cut(numel: int, units: set[int]) -> list[tuple[int, int]] | None:
    """Levels (size, unit), outermost first, or None if the units do not divide each other."""
    levels, outer = [], numel
    for unit in sorted(units, reverse=True):
        if outer % unit:
            return None
        if outer != unit or unit == 1:
            levels.append((outer // unit, unit))
        outer = unit
    return levels


def _cover(
    levels: list[tuple[int, int]], size: Shape, stride: Shape
) -> tuple[list[int], list[tuple[int, list[int]]]] | None:
    """How the dimensions cover the levels: takes, and each dimension's levels; None if they do not fit."""
    position = {unit: i for i, (_, unit) in enumerate(levels)}
    takes = [1] * len(levels)
    used: set[int] = set()
    groups = []
    dims = [d for d in range(len(size)) if size[d] != 1 and stride[d] != 0]
    for d in sorted(dims, key=lambda d: -stride[d]):
        rest, members = size[d], []
        i = position.get(stride[d], -1)
        while True:
            if i < 0 or i in used:
                return None
            used.add(i)
            members.append(i)
            n = levels[i][0]
            if rest <= n:
                takes[i] = rest
                break
            if rest % n:
                return None
            takes[i] = n
            rest //= n
            i -= 1
        groups.append((d, members[::-1]))
    return takes, groups


@lru_cache(maxsize=65536)
def plan(spec: Spec, dtype: torch.dtype, size: Shape, stride: Shape) -> ViewPlan | None:
    """The plan for views of this geometry, or None if the buffer's array has the tensor's values as it is.

    Args:
        spec: of the buffer.
        dtype: torch dtype of the view.
        size: of the view.
        stride: of the view, in elements of `dtype`.
    """
    numpy_dtype = to_numpy(dtype)
    if spec.dtype == numpy_dtype and size == spec.shape and is_row_major(size, stride):
        return None
    gather = Gather(spec, numpy_dtype, size, stride)
    if 0 in size or not spec.numel:
        return Empty(spec, numpy_dtype, size, stride)
    units_of_buffer: set[int] = {1}
    if spec.dtype == numpy_dtype:
        strides = contiguous_strides(spec.shape)
        units_of_buffer |= {s for n, s in zip(spec.shape, strides, strict=True) if n > 1}
    units_of_view = {1} | {s for n, s in zip(size, stride, strict=True) if n > 1 and s}
    # With the units of the buffer, slices stay inside its dimensions (no relayout on a TPU).
    for units in (units_of_buffer | units_of_view, units_of_view):
        levels = _cut(gather.numel, units)
        cover = levels and _cover(levels, size, stride)
        if levels and cover:
            box = Box(spec, numpy_dtype, size, stride, levels, *cover)
            box.fallback = gather
            return box
    return gather


class Empty(ViewPlan):
    """A view without elements."""

    def starts(self, offset: int) -> Shape | None:
        return ()

    def read(self, base: jax.Array, starts: Starts) -> jax.Array:
        return jnp.zeros(self.size, self.dtype)

    def write(self, base: jax.Array, value: jax.Array, starts: Starts) -> jax.Array:
        return base
