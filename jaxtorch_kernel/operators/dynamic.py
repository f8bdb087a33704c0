"""Operators whose result size depends on values: read the size, then run a program of that size.

XLA's shapes are static, so each size would need a program. Instead the second program fills a buffer whose size is
rounded up to a power of two, and the result is a view of its beginning: ten masks of one shape compile a handful of
programs, not ten. Inside a trace the size has no value, and the operator raises.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..base import torch_views
from ..dispatch.operation import Operation
from ..dispatch.read import host_array
from ..dispatch.registry import kernel
from ..dispatch.targets import type_name, write_out
from ..lowerings.registry import Lowering
from ..programs.site import printing
from ..storage.layout import contiguous_strides
from ..storage.transfer import to_device
from .copying import to_cpu

Tensor = torch.Tensor


def read(x: Tensor, what: str) -> np.ndarray:
    """The values of a small device tensor. Waits for them.

    Raises:
        Untraceable: inside a trace, naming the operator `what`.
    """
    return host_array(x, f"passed to {what}, whose result size depends on its values")


def rounded(count: int, limit: int | None = None) -> int:
    """The next power of two, at most `limit`.

    Example:
        >>> rounded(5), rounded(5, 6), rounded(0)
        (8, 6, 1)
    """
    bucket = 1 << max(count - 1, 0).bit_length()
    return bucket if limit is None else min(bucket, limit)


def first_rows(x: Tensor, count: int) -> Tensor:
    """`x[:count]`, contiguous over the larger buffer."""
    if x.shape[0] == count:
        return x
    size = (count, *x.shape[1:])
    return torch_views.as_strided(x, size, contiguous_strides(size))


def program(function: Callable[..., object]) -> Operation:
    """A JAX function as an operation over tensors; its ints and bools are static."""
    return Operation(None, Lowering(function), name=function.__name__.strip("_"))


TensorKernel = Callable[..., Tensor]


def kernel_with_out(name: str, out_name: str) -> Callable[[TensorKernel], TensorKernel]:
    """As `kernel`, for an overload and its `out=` overload."""

    def register(function: TensorKernel) -> TensorKernel:
        def with_out(*args: object, out: Tensor, **kwargs: object) -> Tensor:
            result = function(*args, **kwargs)
            if out.dtype != result.dtype:
                wanted, given = type_name(result.dtype), type_name(out.dtype)
                raise RuntimeError(
                    f"{name.split('.')[0]}: Expected out tensor to have scalar type {wanted} "
                    f"but got scalar type {given}"
                )
            return write_out(out, result)

        kernel(name)(function)
        kernel(out_name)(with_out)
        return function

    return register


# -- positions of a mask ---------------------------------------------------------------------------


def _counting(size: int) -> type[np.signedinteger]:
    """The narrowest dtype that counts to `size`."""
    return np.int32 if size < 2**31 else np.int64


def positions(mask: jax.Array, size: int) -> jax.Array:
    """The first `size` flat positions where a boolean array is true, in order, followed by zeros."""
    flat = mask.reshape(-1)
    dtype = _counting(flat.size)
    slot = jnp.where(flat, jnp.cumsum(flat, dtype=dtype) - 1, size)
    index = jnp.arange(flat.size, dtype=dtype)
    return jnp.zeros(size, dtype).at[slot].set(index, mode="drop")


def _count(x: jax.Array) -> jax.Array:
    return jnp.sum(x != 0, dtype=_counting(x.size))


def _nonzero(x: jax.Array, size: int) -> jax.Array:
    flat = positions(x != 0, size)
    coordinates = jnp.unravel_index(flat, x.shape) if x.ndim else ()
    return jnp.stack(coordinates, 1).astype(np.int64) if x.ndim else jnp.zeros((size, 0), np.int64)


def _masked_select(x: jax.Array, mask: jax.Array, size: int) -> jax.Array:
    x, mask = jnp.broadcast_arrays(x, mask)
    return x.reshape(-1)[positions(mask, size)]


_count_program = program(_count)
_nonzero_program = program(_nonzero)
_masked_select_program = program(_masked_select)


@kernel_with_out("nonzero", "nonzero.out")
def nonzero(self: Tensor) -> Tensor:
    """The coordinates of the nonzero elements, one row each."""
    count = int(read(_count_program(self), "nonzero"))
    if not count:
        return torch.empty((0, self.dim()), dtype=torch.int64, device="jax")
    return first_rows(_nonzero_program(self, rounded(count, self.numel())), count)


@kernel_with_out("masked_select", "masked_select.out")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """The elements where a mask is true, in one dimension."""
    if mask.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    size = torch.broadcast_shapes(self.shape, mask.shape)
    if printing():
        return to_device(torch.masked_select(to_cpu(self), to_cpu(mask)))
    # Count by the mask alone: inside a trace it may have values when `self` has none.
    count = int(read(_count_program(mask.expand(size)), "masked_select"))
    return first_rows(_masked_select_program(self, mask, rounded(count, size.numel())), count)


# -- counting and repeating ------------------------------------------------------------------------


def _extent(x: jax.Array) -> jax.Array:
    return jnp.stack([jnp.min(x), jnp.max(x)])


def _bincount(x: jax.Array, weights: jax.Array | None, size: int) -> jax.Array:
    values = jnp.ones(x.shape, np.int64) if weights is None else weights
    if values.dtype != np.float32 and weights is not None:
        values = values.astype(np.float64)
    return jnp.zeros(size, values.dtype).at[x].add(values)


def _total(x: jax.Array) -> jax.Array:
    return jnp.stack([jnp.sum(x, dtype=np.int64), jnp.min(x, initial=0).astype(np.int64)])


def _repeat_interleave(repeats: jax.Array, size: int) -> jax.Array:
    index = jnp.arange(repeats.shape[0], dtype=repeats.dtype)
    return jnp.repeat(index, repeats, total_repeat_length=size)


_extent_program = program(_extent)
_bincount_program = program(_bincount)
_total_program = program(_total)
_repeat_interleave_program = program(_repeat_interleave)


@kernel_with_out("bincount", "bincount.out")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each nonnegative integer occurs, or the sum of its weights."""
    if self.dim() != 1 or self.is_floating_point() or self.is_complex():
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if not self.numel():
        return torch.zeros(minlength, dtype=torch.int64, device="jax")
    low, high = map(int, read(_extent_program(self), "bincount"))
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    size = max(high + 1, minlength)
    return first_rows(_bincount_program(self, weights, rounded(size)), size)


@kernel_with_out("repeat_interleave.Tensor", "repeat_interleave.Tensor_out")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Each index, repeated `repeats[index]` times. With `output_size` no values are read."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if output_size is not None:
        return _repeat_interleave_program(repeats, output_size)
    total, low = map(int, read(_total_program(repeats), "repeat_interleave"))
    if low < 0:
        raise RuntimeError("repeats can not be negative")
    return first_rows(_repeat_interleave_program(repeats, rounded(total)), total)


def _equal(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.all(x == y)


_equal_program = program(_equal)


@kernel("equal")
def equal(self: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same size and values, as a Python bool."""
    if self.dtype != other.dtype:
        raise RuntimeError(
            f"Expected object of data type {self.dtype} but got data type {other.dtype} for "
            "argument 'other' in call to equal"
        )
    if self.shape != other.shape:
        return False
    return bool(read(_equal_program(self, other), "equal"))
