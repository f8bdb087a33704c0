"""Resizing images: nearest, linear and cubic interpolation, with and without antialiasing, and their gradients.

All of these are separable and linear: along one dimension, each output element is a weighted sum of a few input
elements (`Taps`), whose positions and weights depend only on the sizes. They are NumPy constants of the program. Like
torch's CPU kernels, this computes them in float32, because rounding decides which neighbour is nearest, and for most
methods stores them in the image's dtype, because in bfloat16 that decides whether two elements differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .promote import kind_of, widen
from .registry import lower
from .types import Array
from .vjp import vjp

Scale = float | None


class Taps(NamedTuple):
    """For each output element, the positions that it reads (out, taps) and their weights (None if all are 1)."""

    positions: np.ndarray
    weights: np.ndarray | None


# (size, out, align_corners, scale, dtype of the weights) -> taps
Method = Callable[[int, int, bool, Scale, DTypeLike], Taps]


_IN_FIXED_POINT: set[Method] = set()  # for bytes


def _ratio(size: int, out: int, scale: Scale, align_corners: bool) -> np.floating:
    """Input elements for one output element."""
    if align_corners:
        return np.float32(size - 1) / np.float32(out - 1) if out > 1 else np.float32(0)
    if scale is not None and scale > 0:
        return np.float32(1.0 / scale)
    return np.float32(size) / np.float32(out)


def _sources(size: int, out: int, scale: Scale, align_corners: bool) -> np.ndarray:
    """The position of each output element among the input elements."""
    ratio = _ratio(size, out, scale, align_corners)
    index = np.arange(out, dtype=np.float32)
    if align_corners:
        return index * ratio
    half = np.float32(0.5)
    return (index + half) * ratio - half


def nearest(size: int, out: int, align_corners: bool, scale: Scale, dtype: DTypeLike) -> Taps:
    index = np.arange(out, dtype=np.float32)
    source = np.floor(index * _ratio(size, out, scale, False)).astype(np.int32)
    return Taps(np.minimum(source, size - 1)[:, None], None)


def nearest_exact(size: int, out: int, align_corners: bool, scale: Scale, dtype: DTypeLike) -> Taps:
    center = np.arange(out, dtype=np.float32) + np.float32(0.5)
    source = np.floor(center * _ratio(size, out, scale, False)).astype(np.int32)
    return Taps(np.minimum(source, size - 1)[:, None], None)


def linear(size: int, out: int, align_corners: bool, scale: Scale, dtype: DTypeLike) -> Taps:
    source = np.maximum(_sources(size, out, scale, align_corners), np.float32(0))
    low = np.minimum(source.astype(np.int32), size - 1)
    weight = np.clip(source - low.astype(np.float32), 0, 1).astype(dtype).astype(np.float32)
    positions = np.stack([low, np.minimum(low + 1, size - 1)], 1)
    return Taps(positions, np.stack([1 - weight, weight], 1).astype(dtype))


def _cubic_kernel(x: np.ndarray, a: float | np.float32) -> np.ndarray:
    x = abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def cubic(size: int, out: int, align_corners: bool, scale: Scale, dtype: DTypeLike) -> Taps:
    source = _sources(size, out, scale, align_corners)
    low = np.floor(source)
    offsets = np.arange(-1, 3, dtype=np.float32)
    weights = _cubic_kernel((source - low)[:, None] - offsets, np.float32(-0.75))
    positions = np.clip(low[:, None] + offsets, 0, size - 1).astype(np.int32)
    return Taps(positions, weights.astype(dtype))


def _lanczos_kernel(x: np.ndarray) -> np.ndarray:
    return np.where(abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_FILTERS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    "bilinear": (2, lambda x: np.maximum(1 - abs(x), 0)),
    "bicubic": (4, lambda x: _cubic_kernel(x, -0.5)),
    "lanczos": (6, _lanczos_kernel),
}


def _antialiased(filter: str) -> Method:
    width, kernel = _FILTERS[filter]

    def taps(size: int, out: int, align_corners: bool, scale: Scale, dtype: DTypeLike) -> Taps:
        ratio = _ratio(size, out, scale, align_corners).astype(np.float64)
        support = width / 2 * max(ratio, 1.0)
        center = ratio * (np.arange(out) + 0.5)
        low = np.maximum((center - support + 0.5).astype(np.int64), 0)
        high = np.minimum((center + support + 0.5).astype(np.int64), size)
        positions = low[:, None] + np.arange(max((high - low).max(), 1))
        weights = kernel((positions - center[:, None] + 0.5) / max(ratio, 1.0))
        weights = np.where(positions < high[:, None], weights, 0)
        weights /= weights.sum(1, keepdims=True)
        return Taps(np.minimum(positions, size - 1).astype(np.int32), weights.astype(dtype))

    return taps


def _fixed_point(taken: Array, weights: np.ndarray, shape: Sequence[int], axis: int) -> Array:
    """The weighted sums of bytes as torch's CPU kernels compute them: with 16-bit weights, rounded along each axis."""
    largest = float(weights.max())
    bits = next((b for b in range(22) if int(0.5 + largest * 2 ** (b + 1)) >= 2**15), 22)
    scaled = weights * 2.0**bits
    rounded = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32).reshape(shape)
    total = (taken.astype(np.int32) * rounded).sum(axis + 1) + 2 ** (bits - 1)
    return jnp.clip(total >> bits, 0, 255).astype(np.float32)


def _resize(
    x: Array,
    output_size: Sequence[int],
    method: Method,
    align_corners: bool,
    scales: Sequence[Scale],
) -> Array:
    dtype = x.dtype
    (x,) = widen(x)
    if kind_of(dtype) == "i" and method not in (nearest, nearest_exact):
        x = x.astype(np.float32)
    # torch never rounds the weights of this method.
    exact = method is linear and len(output_size) == 2
    weights_dtype = x.dtype if exact or kind_of(dtype) == "i" else dtype
    # Start with the innermost dimension, as torch does: it is the cheapest to read.
    for d in reversed(range(len(output_size))):
        axis = d + 2
        size, out = x.shape[axis], output_size[d]
        positions, weights = method(size, out, align_corners, scales[d], weights_dtype)
        if weights is None:
            x = jnp.take(x, positions[:, 0], axis=axis)
            continue
        shape = (*weights.shape, *[1] * (x.ndim - axis - 1))
        taken = jnp.take(x, positions, axis=axis)
        if dtype == np.uint8 and method in _IN_FIXED_POINT:
            x = x if size == out else _fixed_point(taken, weights, shape, axis)
            continue
        x = (taken * weights.astype(x.dtype).reshape(shape)).sum(axis + 1)
    if kind_of(dtype) == "i" and kind_of(x.dtype) == "f":
        info = jnp.iinfo(dtype)
        x = jnp.clip(jnp.round(x), info.min, info.max)
    return x.astype(dtype)


def _register(name: str, count: int, method: Method, has_corners: bool) -> None:
    """Register the forward and backward operators of one method for `count` dimensions."""
    scale_names = ["scales"] if count == 1 else [f"scales_{c}" for c in "dhw"[3 - count :]]

    def options(arguments: tuple[Scale, ...]) -> tuple[bool, list[Scale]]:
        """`align_corners`, which only some methods have, and one scale for each dimension."""
        scales = list(arguments)
        corners = bool(scales.pop(0)) if has_corners else False
        return corners, scales + [None] * (count - len(scales))

    @lower(name, static=scale_names)
    def forward(self: Array, output_size: Sequence[int], *arguments: Scale) -> Array:
        return _resize(self, output_size, method, *options(arguments))

    @lower(f"{name}_backward", static=scale_names)
    def backward(
        grad_output: Array, output_size: Sequence[int], input_size: Sequence[int], *arguments: Scale
    ) -> Array:
        def resize(x: Array) -> Array:
            return _resize(x, output_size, method, *options(arguments))

        (grad,) = widen(grad_output)
        return vjp(resize, (jnp.zeros(input_size, grad.dtype),), grad)[0]


for _count in (1, 2, 3):
    _register(f"upsample_nearest{_count}d", _count, nearest, False)
    _register(f"_upsample_nearest_exact{_count}d", _count, nearest_exact, False)
for _count, _name in enumerate(("linear1d", "bilinear2d", "trilinear3d"), 1):
    _register(f"upsample_{_name}", _count, linear, True)
_register("upsample_bicubic2d", 2, cubic, True)
for _name in _FILTERS:
    _method = _antialiased(_name)
    _IN_FIXED_POINT.add(_method)
    _register(f"_upsample_{_name}2d_aa", 2, _method, True)
