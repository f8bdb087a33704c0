"""Operators whose result size depends on values: read the size, then run a program of that size.

XLA's shapes are static, so each size would need its own program. Instead the second program fills a
buffer whose size is rounded up to a power of two, and the result is a view of its beginning: ten masks
of one shape compile a handful of programs, not ten. Inside a trace the size has no value, and the
operator raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..base import torch_private as private
from ..dispatch.operation import Operation
from ..dispatch.read import host_array
from ..dispatch.registry import kernel
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
    return private.as_strided(x, size, contiguous_strides(size))


def program(function: Callable[..., Any]) -> Operation:
    """A JAX function as one cached program over tensors; its ints and bools are static."""
    return Operation(None, Lowering(function), name=function.__name__.strip("_"))


def _into(out: Tensor, result: Tensor) -> Tensor:
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def kernel_with_out(name: str, out_name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `kernel`, and its `out=` overload too."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def with_out(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
            return _into(out, function(*args, **kwargs))

        kernel(name)(function)
        kernel(out_name)(with_out)
        return function

    return register


# -- positions of a mask ---------------------------------------------------------------------------


def _counting(size: int) -> Any:
    """The narrowest dtype that counts to `size`."""
    return np.int32 if size < 2**31 else np.int64


def positions(mask: Any, size: int) -> jax.Array:
    """The first `size` flat positions where a boolean array is true, in order; zeros follow."""
    flat = mask.reshape(-1)
    dtype = _counting(flat.size)
    slot = jnp.where(flat, jnp.cumsum(flat, dtype=dtype) - 1, size)
    index = jnp.arange(flat.size, dtype=dtype)
    return jnp.zeros(size, dtype).at[slot].set(index, mode="drop")


def _count(x: Any) -> jax.Array:
    return jnp.sum(x != 0, dtype=_counting(x.size))


def _nonzero(x: Any, size: int) -> jax.Array:
    flat = positions(x != 0, size)
    coordinates = jnp.unravel_index(flat, x.shape) if x.ndim else ()
    return jnp.stack(coordinates, 1).astype(np.int64) if x.ndim else jnp.zeros((size, 0), np.int64)


def _masked_select(x: Any, mask: Any, size: int) -> jax.Array:
    x, mask = jnp.broadcast_arrays(x, mask)
    return x.reshape(-1)[positions(mask, size)]


_count_program = program(_count)
_nonzero_program = program(_nonzero)
_masked_select_program = program(_masked_select)


@kernel_with_out("nonzero", "nonzero.out")
def nonzero(self: Tensor) -> Tensor:
    """Coordinates of the elements that are not zero, one row each."""
    count = int(read(_count_program(self), "nonzero"))
    if not count:
        return torch.empty((0, self.dim()), dtype=torch.int64, device="jax")
    return first_rows(_nonzero_program(self, rounded(count, self.numel())), count)


@kernel_with_out("masked_select", "masked_select.out")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """The elements where a mask is true, as a row."""
    if mask.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    size = torch.broadcast_shapes(self.shape, mask.shape)
    if printing():
        return to_device(torch.masked_select(to_cpu(self), to_cpu(mask)))
    # Of the mask alone: it may be known where the values are not, inside a trace.
    count = int(read(_count_program(mask.expand(size)), "masked_select"))
    return first_rows(_masked_select_program(self, mask, rounded(count, size.numel())), count)


# -- counting and repeating ------------------------------------------------------------------------


def _extent(x: Any) -> jax.Array:
    return jnp.stack([jnp.min(x), jnp.max(x)])


def _bincount(x: Any, weights: Any, size: int) -> jax.Array:
    values = jnp.ones(x.shape, np.int64) if weights is None else weights
    if values.dtype != np.float32 and weights is not None:
        values = values.astype(np.float64)
    return jnp.zeros(size, values.dtype).at[x].add(values)


def _total(x: Any) -> jax.Array:
    return jnp.stack([jnp.sum(x, dtype=np.int64), jnp.min(x, initial=0).astype(np.int64)])


def _repeat_interleave(repeats: Any, size: int) -> jax.Array:
    index = jnp.arange(repeats.shape[0], dtype=repeats.dtype)
    return jnp.repeat(index, repeats, total_repeat_length=size)


_extent_program = program(_extent)
_bincount_program = program(_bincount)
_total_program = program(_total)
_repeat_interleave_program = program(_repeat_interleave)


@kernel_with_out("bincount", "bincount.out")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer from 0 on occurs, or the sum of its weights."""
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
    """Each index as often as `repeats` says. With `output_size` nothing need be read."""
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


def _equal(x: Any, y: Any) -> jax.Array:
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
