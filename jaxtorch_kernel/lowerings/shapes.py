"""Operators that rearrange whole tensors: joining, splitting, repeating, flipping, triangles, blocks.

Views (`permute`, `expand`, `narrow`) need no program (`operators/views.py`). The `*_copy` forms and the gradients of
views are torch's own composites of a view and a copy, whose offsets are run-time operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import torch

from .dimensions import per_dimension
from .promote import cast, promote, result_dtype
from .registry import lower
from .types import Array, Arrays, Ints
from .vjp import transpose

# -- joining and splitting -------------------------------------------------------------------------


@lower("cat")
def cat(tensors: Arrays, dim: int = 0) -> Array:
    dtype = result_dtype(*tensors)
    # torch ignores tensors of shape (0,), whatever the rank of the others.
    joined = [x for x in tensors if x.shape != (0,)]
    if not joined:
        return jnp.zeros(0, dtype)
    return jnp.concatenate([cast(x, dtype) for x in joined], dim)


@lower("stack")
def stack(tensors: Arrays, dim: int = 0) -> Array:
    return jnp.stack(promote(*tensors), dim)


@lower("_chunk_cat")
def chunk_cat(tensors: Arrays, dim: int, num_chunks: int) -> Array:
    dim %= tensors[0].ndim
    rows = []
    for x in promote(*tensors):
        size = -(-x.shape[dim] // num_chunks) * num_chunks
        x = jnp.pad(x, [(0, size - n if d == dim else 0) for d, n in enumerate(x.shape)])
        rows.append(x.reshape(*x.shape[:dim], num_chunks, -1))
    return jnp.concatenate(rows, -1)


@lower("block_diag")
def block_diag(tensors: Arrays) -> Array:
    blocks = [jnp.atleast_2d(x) for x in promote(*tensors)]
    width = sum(b.shape[1] for b in blocks)
    rows, left = [], 0
    for b in blocks:
        rows.append(jnp.pad(b, ((0, 0), (left, width - left - b.shape[1]))))
        left += b.shape[1]
    return jnp.concatenate(rows)


# -- copies ----------------------------------------------------------------------------------------


@lower("clone")
def identity(self: Array, memory_format: torch.memory_format | None = None) -> Array:
    return self


# -- order and repetition --------------------------------------------------------------------------


@lower("repeat")
def repeat(self: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(self, tuple(repeats))


@lower("flip")
def flip(self: Array, dims: Sequence[int]) -> Array:
    return jnp.flip(self, tuple(dims)) if dims and self.ndim else self


@lower("roll")
def roll(self: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    if not dims:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return jnp.roll(self, tuple(shifts), tuple(dims)) if self.size else self


@lower("channel_shuffle")
def channel_shuffle(self: Array, groups: int) -> Array:
    n, c, *rest = self.shape
    return self.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(self.shape)


# -- triangles and diagonals -----------------------------------------------------------------------


@lower("tril")
def tril(self: Array, diagonal: int = 0) -> Array:
    return jnp.tril(self, diagonal)


@lower("triu")
def triu(self: Array, diagonal: int = 0) -> Array:
    return jnp.triu(self, diagonal)


@lower("diag_embed")
def diag_embed(self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    n = self.shape[-1] + abs(offset)
    before, after = (0, n - self.shape[-1]) if offset >= 0 else (-offset, 0)
    rows = jnp.pad(self, [(0, 0)] * (self.ndim - 1) + [(before, after)])
    square = jnp.where(
        jnp.eye(n, n, offset, dtype=bool), rows[..., None], jnp.zeros((), self.dtype)
    )
    return jnp.moveaxis(square, (-2, -1), (dim1, dim2))


# -- windows ---------------------------------------------------------------------------------------


def _windows(
    size: Sequence[int], kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> list[tuple[slice, slice]]:
    """For each element of the kernel, the pixels of the padded image that it is multiplied with."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (
        per_dimension(v, 2) for v in (kernel_size, dilation, padding, stride)
    )
    oh = (size[0] + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (size[1] + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    return [
        (
            slice(i * dh, i * dh + sh * (oh - 1) + 1, sh),
            slice(j * dw, j * dw + sw * (ow - 1) + 1, sw),
        )
        for i in range(kh)
        for j in range(kw)
    ]


def _padded(x: Array, padding: Ints) -> Array:
    ph, pw = per_dimension(padding, 2)
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(ph, ph), (pw, pw)])


@lower("im2col")
def im2col(
    self: Array,
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
) -> Array:
    x = _padded(self, padding)
    windows = _windows(self.shape[-2:], kernel_size, dilation, padding, stride)
    columns = jnp.stack([x[..., rows, cols] for rows, cols in windows], -3)
    batch, channels = self.shape[:-3], self.shape[-3]
    return columns.reshape(*batch, channels * len(windows), math.prod(columns.shape[-2:]))


@lower("col2im")
def col2im(
    self: Array,
    output_size: Sequence[int],
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
) -> Array:
    kernel_count = math.prod(per_dimension(kernel_size, 2))
    *batch, rows, _ = self.shape
    size = (*batch, rows // kernel_count, *output_size)
    return transpose(lambda x: im2col(x, kernel_size, dilation, padding, stride), size, self)


@lower("unfold_backward")
def unfold_backward(
    grad_in: Array, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> Array:
    def forward(x: Array) -> Array:
        if not x.ndim:
            return x.reshape(1)
        d = dim % x.ndim
        count = (x.shape[d] - size) // step + 1
        starts = np.arange(count, dtype=np.int32)[:, None] * step
        windows = jnp.take(x, starts + np.arange(size, dtype=np.int32), d, mode="clip")
        return jnp.moveaxis(windows, d + 1, -1)

    return transpose(forward, input_sizes, grad_in)
