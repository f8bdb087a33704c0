"""Operators whose result's size depends on values: read the size, then run a program of that size.

XLA's shapes are static, so that each size would be a program of its own. Instead the second program
fills a buffer whose size is rounded up to a power of two, and the result is a view of its beginning:
ten masks of one shape compile a handful of programs, not ten. Inside a trace there is no size to
read, and the operator raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .. import _torch_private as private
from ..lowerings.registry import Lowering
from ..storage.layout import contiguous_strides
from ..storage.transfer import to_device
from . import tracing
from .copying import to_cpu
from .operation import Operation
from .read import contiguous_array
from .registry import kernel
from .site import printing

Tensor = torch.Tensor


def read(x: Tensor, what: str) -> np.ndarray:
    """The values of a small device tensor. Waits for them.

    Raises:
        Untraceable: inside a trace, naming the operator `what`.
    """
    array = contiguous_array(x)
    tracing.forbid(array, f"given to {what}, whose result's size depends on its values")
    return np.asarray(array)


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
    return Operation(None, Lowering(function), function.__name__.strip("_"))


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


def positions(mask: Any, size: int) -> jax.Array:
    """The first `size` flat positions where a boolean array is true, in order; zeros follow."""
    flat = mask.reshape(-1)
    slot = jnp.where(flat, jnp.cumsum(flat, dtype=np.int32) - 1, size)
    index = jnp.arange(flat.size, dtype=np.int32)
    return jnp.zeros(size, np.int32).at[slot].set(index, mode="drop")


def _count(x: Any) -> jax.Array:
    return jnp.sum(x != 0, dtype=np.int32)


def _nonzero(x: Any, size: int) -> jax.Array:
    flat = positions(x != 0, size)
    coordinates = jnp.unravel_index(flat, x.shape) if x.ndim else ()
    return jnp.stack(coordinates, 1).astype(np.int64) if x.ndim else jnp.zeros((size, 0), np.int64)


def _masked_select(x: Any, mask: Any, size: int) -> jax.Array:
    x, mask = jnp.broadcast_arrays(x, mask)
    return x.reshape(-1)[positions(mask, size)]


def _count_mask(x: Any, mask: Any) -> jax.Array:
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    return jnp.sum(jnp.broadcast_to(mask, shape), dtype=np.int32)


_count_program = program(_count)
_count_mask_program = program(_count_mask)
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
    count = int(read(_count_mask_program(self, mask), "masked_select"))
    if not count:
        return torch.empty((0,), dtype=self.dtype, device="jax")
    return first_rows(_masked_select_program(self, mask, rounded(count, size.numel())), count)
