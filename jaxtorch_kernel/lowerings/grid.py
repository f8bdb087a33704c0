"""Sampling an image at the points of a grid (`grid_sample`), and the grids of affine maps.

A point's coordinates are mapped to positions in the image, and the padding mode maps those into the image. The
interpolation reads the neighbours: one to four taps along each dimension, and all their combinations. torch's gradient
is zero at and beyond the border that it clips to; `clip` would have a different one, so `where` is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .promote import widen
from .registry import lower
from .types import Array, Gradients
from .vjp import vjp

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


def _position(point: Array, size: int, align_corners: bool) -> Array:
    """The position among `size` elements of a coordinate in [-1, 1]."""
    if align_corners:
        return (point + 1) / 2 * (size - 1)
    return ((point + 1) * size - 1) / 2


def _clip(x: Array, size: int) -> Array:
    return jnp.where(x <= 0, 0, jnp.where(x >= size - 1, size - 1, x))


def _reflect(x: Array, size: int, align_corners: bool) -> Array:
    """Reflect positions at the centres of the outer elements, or at their outer edges."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(x)
    distance = x - low
    distance = jnp.where(distance < 0, -distance, distance)
    extra = jnp.fmod(distance, span)
    even = jnp.floor(distance / span) % 2 == 0
    return jnp.where(even, extra + low, span - extra + low)


def _inside(x: Array, size: int, padding_mode: int, align_corners: bool) -> Array:
    if padding_mode == _REFLECTION:
        x = _reflect(x, size, align_corners)
    return x if padding_mode == _ZEROS else _clip(x, size)


def _cubic_weights(t: Array) -> list[Array]:
    a = -0.75

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(
    point: Array, size: int, interpolation: int, padding_mode: int, align_corners: bool
) -> list[tuple[Array, Array]]:
    """The positions (whole numbers) that are read along one dimension, and their weights."""
    x = _position(point, size, align_corners)
    if interpolation == _BICUBIC:
        low = jnp.floor(x)
        positions = [_inside(low + k, size, padding_mode, align_corners) for k in (-1, 0, 1, 2)]
        return list(zip(positions, _cubic_weights(x - low), strict=True))
    x = _inside(x, size, padding_mode, align_corners)
    if interpolation == _NEAREST:
        return [(jnp.round(x), jnp.ones_like(x))]
    low = jnp.floor(x)
    return [(low, low + 1 - x), (low + 1, x - low)]


def _grid_sample(
    input: Array, grid: Array, interpolation: int, padding_mode: int, align_corners: bool
) -> Array:
    """Sample (N, C, *size) at (N, *out, d), which gives (N, C, *out). The grid's coordinates start with the innermost
    dimension."""
    batch, channels, *size = input.shape
    dims = len(size)
    taps = [
        _taps(grid[..., dims - 1 - d], size[d], interpolation, padding_mode, align_corners)
        for d in range(dims)
    ]
    flat = input.reshape(batch, channels, -1)
    total = jnp.zeros((), input.dtype)
    for corner in itertools.product(*taps):
        index = jnp.zeros(grid.shape[:-1], np.int32)
        weight, valid = jnp.ones((), grid.dtype), jnp.ones((), bool)
        for (position, w), n in zip(corner, size, strict=True):
            tap = jnp.clip(position, -1, n).astype(np.int32)
            valid &= (tap >= 0) & (tap < n)
            index = index * n + jnp.clip(tap, 0, n - 1)
            weight = weight * w
        value = jnp.take_along_axis(flat, index.reshape(batch, 1, -1), axis=2)
        value = value.reshape(batch, channels, *index.shape[1:])
        total += jnp.where(valid[:, None], value * weight[:, None], 0)
    return total


@lower("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler(
    input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Array:
    input, grid = widen(input, grid)
    return _grid_sample(input, grid, interpolation_mode, padding_mode, align_corners)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Array,
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> Gradients:
    input, grid = widen(input, grid)
    options = (interpolation_mode, padding_mode, align_corners)
    # `output_mask` applies only to the image: torch always returns the grid's gradient.
    grad_input, grad_grid = vjp(
        lambda x, g: _grid_sample(x, g, *options), (input, grid), grad_output
    )
    return grad_input if output_mask[0] else None, grad_grid


@lower("affine_grid_generator")
def affine_grid_generator(theta: Array, size: Sequence[int], align_corners: bool) -> Array:
    (matrix,) = widen(theta)
    sizes = size[2:]
    axes = []
    for n in sizes:
        axis = jnp.linspace(-1, 1, n, dtype=matrix.dtype) if n > 1 else jnp.zeros(1, matrix.dtype)
        axes.append(axis if align_corners else axis * ((n - 1) / n))
    points = [*reversed(jnp.meshgrid(*axes, indexing="ij")), jnp.ones(sizes, matrix.dtype)]
    base = jnp.stack(points, -1)
    return jnp.einsum("...i,noi->n...o", base, matrix, precision=jax.lax.Precision.HIGHEST)
