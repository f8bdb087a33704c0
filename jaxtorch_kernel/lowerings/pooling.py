"""Pooling: maxima with their indices, averages, and their gradients; fixed, adaptive and fractional windows.

A maximum over a multidimensional window is computed one dimension at a time, and each step carries the flat index of
the maximum: k + k elements are read instead of k * k. As in torch's CPU kernels, the first of equal values in row-major
order wins, and the last of several NaNs. `Windows` describes the windows along one dimension by their start positions
and sizes; fixed, adaptive and fractional pooling differ only in these. One scatter adds the gradient at the saved
indices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from .dimensions import per_dimension
from .promote import kind_of, widen
from .registry import lower
from .types import Array, Function, Ints, Pair
from .vjp import vjp

# Windows up to this size are unrolled, so that XLA fuses the reads of their elements; longer windows use a loop.
_UNROLLED = 16


Positions = np.ndarray | Array


@dataclass(frozen=True)
class Windows:
    """The windows along one dimension.

    Attributes:
        first: position of each window's first element inside the input: a NumPy vector, or, for windows at random
            positions, a JAX array with batch dimensions before that of the windows.
        start: position of each window's start, which is before `first` if it is in the padding.
        last: position of each window's last element inside the input.
        length: number of elements of the longest window.
        step: distance between elements.
        stride: distance between windows, or None if it varies.
    """

    first: Positions
    start: Positions
    last: Positions
    length: int
    step: int = 1
    stride: int | None = None


def fixed(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Windows:
    """Windows of one size, at regular distances."""
    start = np.arange(out) * stride - padding
    first = start + (-np.minimum(start, 0) + dilation - 1) // dilation * dilation
    return Windows(first, start, np.full(out, size - 1), kernel, dilation, stride)


def adaptive(size: int, out: int) -> Windows:
    """Windows that divide `size` elements into `out` parts, which overlap if `out` does not divide `size`."""
    start = np.arange(out) * size // out
    end = -(-(np.arange(out) + 1) * size // out)
    return Windows(start, start, end - 1, int((end - start).max(initial=1)))


def _elements(x: Array, axis: int, windows: Windows, j: int | Array, fill: Array) -> Array:
    """The j-th element of every window; `fill` in the padding."""
    out = windows.start.shape[-1]
    if windows.stride is not None and isinstance(j, int):
        low = int(windows.start[0]) + j * windows.step
        high = low + (out - 1) * windows.stride + 1
        config = [(0, 0, 0)] * x.ndim
        config[axis] = (max(-low, 0), max(high - x.shape[axis], 0), 0)
        padded = lax.pad(x, fill, config)
        low = max(low, 0)
        return lax.slice_in_dim(
            padded, low, low + (out - 1) * windows.stride + 1, windows.stride, axis
        )
    # A position past either end of a window reads its first or last element, which does not change the maximum.
    return _take(x, jnp.clip(windows.start + j * windows.step, windows.first, windows.last), axis)


def _take(x: Array, positions: Positions, axis: int) -> Array:
    if positions.ndim == 1:
        return jnp.take(x, positions.astype(np.int32), axis=axis)
    shape = [1] * x.ndim
    shape[axis] = positions.shape[-1]
    batch = positions.ndim - 1
    shape[:batch] = positions.shape[:batch]
    return jnp.take_along_axis(x, positions.reshape(shape), axis=axis)


def _lowest(dtype: DTypeLike) -> float:
    return -jnp.inf if kind_of(dtype) == "f" else jnp.iinfo(dtype).min


def _max_along(
    x: Array, index: Array, axis: int, windows: Windows, weight: int
) -> tuple[Array, Array]:
    """Maxima over windows of one dimension, and their flat indices: `index` at the maximum + its position * weight."""
    lowest = jnp.asarray(_lowest(x.dtype), x.dtype)
    zero = jnp.zeros((), np.int32)
    shape = [1] * x.ndim
    shape[axis] = windows.start.shape[-1]
    shape[: windows.start.ndim - 1] = windows.start.shape[:-1]

    def element(j: int | Array) -> Pair:
        """The j-th element of each window, and its flat index."""
        position = jnp.clip(windows.start + j * windows.step, windows.first, windows.last)
        flat = position.astype(np.int32).reshape(shape) * weight
        value = _elements(x, axis, windows, j, lowest)
        return value, _elements(index, axis, windows, j, zero) + flat

    def step(j: int | Array, best: Pair) -> Pair:
        value, where = element(j)
        # The first element always replaces the initial value: in a window of -inf, it gets the gradient.
        better = (value > best[0]) | (windows.start + j * windows.step == windows.first).reshape(
            shape
        )
        if kind_of(x.dtype) == "f":
            better |= jnp.isnan(value)
        return jnp.where(better, value, best[0]), jnp.where(better, where, best[1])

    first = jnp.asarray(windows.first)
    where = _take(index, first, axis) + first.astype(np.int32).reshape(shape) * weight
    best = (jnp.full(where.shape, lowest), where)
    if windows.length > _UNROLLED:
        return lax.fori_loop(0, windows.length, step, best)
    for j in range(windows.length):
        best = step(j, best)
    return best


def max_pool(x: Array, windows: Sequence[Windows]) -> tuple[Array, Array]:
    """Maxima over windows of the last dimensions, and their indices into these dimensions, flattened."""
    index = jnp.zeros(x.shape, np.int32)
    weights = np.cumprod([1, *x.shape[: x.ndim - len(windows) : -1]])
    for i, w in enumerate(reversed(windows)):
        x, index = _max_along(x, index, x.ndim - 1 - i, w, int(weights[i]))
    return x, index.astype(np.int64)


def _pooled_size(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    out = -(-span // stride) + 1 if ceil_mode else span // stride + 1
    # The last window must start inside the input or its left padding.
    return out - 1 if ceil_mode and (out - 1) * stride >= size + padding else out


def _register_max_pool(count: int) -> None:
    @lower(f"max_pool{count}d_with_indices")
    def forward(
        self: Array,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        options = (
            per_dimension(kernel_size, count),
            per_dimension(stride, count, kernel_size),
            per_dimension(padding, count),
            per_dimension(dilation, count),
        )
        windows = []
        for n, k, s, p, d in zip(self.shape[-count:], *options, strict=True):
            windows.append(fixed(n, _pooled_size(n, k, s, p, d, ceil_mode), k, s, p, d))
        return max_pool(self, windows)


for _count in (2, 3):
    _register_max_pool(_count)


def _adaptive_max_pool(self: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    count = len(output_size)
    sizes = zip(self.shape[-count:], output_size, strict=True)
    return max_pool(self, [adaptive(n, o) for n, o in sizes])


lower("adaptive_max_pool2d", "adaptive_max_pool3d")(_adaptive_max_pool)


def _fractional_max_pool(
    self: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    count = len(output_size)
    samples = random_samples.reshape(*self.shape[:-count], count)
    windows = []
    for d, (kernel, out) in enumerate(zip(kernel_size, output_size, strict=True)):
        # In torch's samples, the width comes first for 2-d windows, and the depth for 3-d ones.
        sample = samples[..., d if count == 3 else 1 - d, None]
        room = self.shape[d - count] - kernel
        start = jnp.full((*sample.shape[:-1], out), room, np.int32)
        if out > 1:
            alpha = jnp.asarray(room, sample.dtype) / (out - 1)
            index = jnp.arange(out - 1, dtype=np.int32).astype(sample.dtype)
            drawn = jnp.trunc((index + sample) * alpha) - jnp.trunc(sample * alpha)
            start = start.at[..., :-1].set(drawn.astype(np.int32))
        windows.append(Windows(start, start, start + kernel - 1, kernel))
    return max_pool(self, windows)


lower("fractional_max_pool2d", "fractional_max_pool3d")(_fractional_max_pool)


# -- where the gradient of a maximum goes ----------------------------------------------------------


def _put(values: Array, indices: Array, size: Sequence[int], add: bool) -> Array:
    """Zeros whose last dimensions are `size`, with `values` at flat `indices` into these dimensions."""

    def put(values: Array, indices: Array) -> Array:
        elements = jnp.zeros(int(np.prod(size)), values.dtype).at[indices.reshape(-1)]
        write = elements.add if add else elements.set
        return write(values.reshape(-1), mode="drop", wrap_negative_indices=False).reshape(size)

    # Mapped over the batch, so that XLA does not gather a batch on several devices.
    for _ in range(values.ndim - len(size)):
        put = jax.vmap(put)
    return put(values, indices.astype(np.int32))


def _max_pool_backward(count: int) -> Function:
    def backward(grad_output: Array, self: Array, *options: Any) -> Array:
        (grad,) = widen(grad_output)
        return _put(grad, options[-1], self.shape[-count:], add=True)

    return backward


for _count in (2, 3):
    lower(
        f"max_pool{_count}d_with_indices_backward",
        f"adaptive_max_pool{_count}d_backward",
        f"fractional_max_pool{_count}d_backward",
    )(_max_pool_backward(_count))


@lower("max_unpool2d", "max_unpool3d")
def max_unpool(self: Array, indices: Array, output_size: Sequence[int], *options: Any) -> Array:
    return _unpooled(self, indices, tuple(output_size))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _unpooled(values: Array, indices: Array, size: tuple[int, ...]) -> Array:
    """Like torch's, the gradient includes every value for an element, even if later values overwrote it."""
    return _put(values, indices, size, add=False)


def _save(values: Array, indices: Array, size: tuple[int, ...]) -> Pair:
    return _unpooled(values, indices, size), indices


def _pull_back(size: tuple[int, ...], indices: Array, grad: Array) -> tuple[Array, None]:
    count = len(size)
    flat = grad.reshape(*grad.shape[:-count], -1)
    rows = indices.reshape(*indices.shape[:-count], -1).astype(np.int32)
    taken = jnp.take_along_axis(flat, rows, -1, wrap_negative_indices=False)
    return taken.reshape(indices.shape), None


_unpooled.defvjp(_save, _pull_back)


# -- averages --------------------------------------------------------------------------------------


def _avg_pool(
    self: Array,
    count: int,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    kernel = per_dimension(kernel_size, count)
    stride = per_dimension(stride, count, kernel)
    padding = per_dimension(padding, count)
    pads, divisor = [], np.ones((), np.int32)
    for n, k, s, p in zip(self.shape[-count:], kernel, stride, padding, strict=True):
        out = _pooled_size(n, k, s, p, 1, ceil_mode)
        start = np.arange(out) * s - p
        # The divisor counts elements of the padding, but not those beyond it, which `ceil_mode` allows.
        edges = (-p, n + p) if count_include_pad else (0, n)
        inside = np.minimum(start + k, edges[1]) - np.maximum(start, edges[0])
        divisor = divisor[..., None] * inside
        pads.append((p, max((out - 1) * s + k - n - p, 0)))
    outer = self.ndim - count
    (x,) = widen(self)
    # The initial value is a NumPy array, from which JAX recognizes a sum and can differentiate it.
    total = lax.reduce_window(
        x,
        np.zeros((), x.dtype),
        lax.add,
        (1,) * outer + tuple(kernel),
        (1,) * outer + tuple(stride),
        [(0, 0)] * outer + pads,
    )
    over = jnp.asarray(divisor if divisor_override is None else divisor_override, x.dtype)
    if kind_of(x.dtype) == "f":
        return total / over
    return lax.div(total, jnp.broadcast_to(over, total.shape))


def _register_avg_pool(count: int) -> None:
    @lower(f"avg_pool{count}d")
    def forward(
        self: Array,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        options = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return _avg_pool(self, count, *options)

    @lower(f"avg_pool{count}d_backward")
    def backward(grad_output: Array, self: Array, *options: Any) -> Array:
        return vjp(lambda x: _avg_pool(x, count, *options), (self,), grad_output)[0]


for _count in (2, 3):
    _register_avg_pool(_count)


def _adaptive_avg_pool(self: Array, output_size: Sequence[int]) -> Array:
    (x,) = widen(self)
    for axis, out in enumerate(output_size, self.ndim - len(output_size)):
        size = x.shape[axis]
        if out and size % out == 0:
            x = x.reshape(*x.shape[:axis], out, size // out, *x.shape[axis + 1 :]).mean(axis + 1)
            continue
        windows = adaptive(size, out)
        position = windows.start[:, None] + np.arange(windows.length)
        inside = position <= windows.last[:, None]
        shape = [*inside.shape, *[1] * (x.ndim - axis - 1)]
        taken = jnp.take(x, np.minimum(position, size - 1).astype(np.int32), axis=axis)
        length = inside.sum(1).astype(x.dtype).reshape(out, *shape[2:])
        x = jnp.where(inside.reshape(shape), taken, 0).sum(axis + 1) / length
    return x.astype(self.dtype)


lower("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")(_adaptive_avg_pool)


def _adaptive_avg_pool_backward(count: int) -> Function:
    def backward(grad_output: Array, self: Array) -> Array:
        size = grad_output.shape[-count:]
        return vjp(lambda x: _adaptive_avg_pool(x, size), (self,), grad_output)[0]

    return backward


for _count in (2, 3):
    lower(f"_adaptive_avg_pool{_count}d_backward")(_adaptive_avg_pool_backward(_count))
