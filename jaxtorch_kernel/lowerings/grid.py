"""Sampling an image at the points of a grid (`grid_sample`), and the grids of affine maps.

A point's coordinates are mapped to positions in the image, the padding mode maps those back inside, and the
interpolation reads the neighbours: the product, over the dimensions, of one to four taps each. torch's gradient
is zero at and beyond the border that it clips to, hence `where` instead of `clip`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .promote import widen
from .registry import lower
from .vjp import vjp

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


def _position(point: Any, size: int, align_corners: bool) -> Any:
    """A coordinate in [-1, 1] as a position among `size` elements."""
    if align_corners:
        return (point + 1) / 2 * (size - 1)
    return ((point + 1) * size - 1) / 2


def _clip(x: Any, size: int) -> Any:
    return jnp.where(x <= 0, 0, jnp.where(x >= size - 1, size - 1, x))


def _reflect(x: Any, size: int, align_corners: bool) -> Any:
    """Mirror at the centres of the outer elements, or at their outer edges."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(x)
    distance = x - low
    distance = jnp.where(distance < 0, -distance, distance)
    extra = jnp.fmod(distance, span)
    even = jnp.floor(distance / span) % 2 == 0
    return jnp.where(even, extra + low, span - extra + low)


def _inside(x: Any, size: int, padding_mode: int, align_corners: bool) -> Any:
    if padding_mode == _REFLECTION:
        x = _reflect(x, size, align_corners)
    return x if padding_mode == _ZEROS else _clip(x, size)


def _cubic_weights(t: Any) -> list[Any]:
    a = -0.75

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(
    point: Any, size: int, interpolation: int, padding_mode: int, align_corners: bool
) -> list[tuple[Any, Any]]:
    """Positions along one dimension, whole numbers, and their weights."""
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
    input: Any, grid: Any, interpolation: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    """(N, C, *size) sampled at (N, *out, d): (N, C, *out). The grid's last axis names the innermost dimension first."""
    batch, channels, *size = input.shape
    dims = len(size)
    taps = [
        _taps(grid[..., dims - 1 - d], size[d], interpolation, padding_mode, align_corners)
        for d in range(dims)
    ]
    flat = input.reshape(batch, channels, -1)
    total: Any = 0
    for corner in itertools.product(*taps):
        index = jnp.zeros(grid.shape[:-1], np.int32)
        weight, valid = jnp.ones((), grid.dtype), jnp.ones((), bool)
        for (position, w), n in zip(corner, size, strict=True):
            place = jnp.clip(position, -1, n).astype(np.int32)
            valid &= (place >= 0) & (place < n)
            index = index * n + jnp.clip(place, 0, n - 1)
            weight = weight * w
        value = jnp.take_along_axis(flat, index.reshape(batch, 1, -1), axis=2)
        value = value.reshape(batch, channels, *index.shape[1:])
        total += jnp.where(valid[:, None], value * weight[:, None], 0)
    return total


@lower("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler(
    input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    input, grid = widen(input, grid)
    return _grid_sample(input, grid, interpolation_mode, padding_mode, align_corners)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Any,
    input: Any,
    grid: Any,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Any, Any]:
    input, grid = widen(input, grid)
    options = (interpolation_mode, padding_mode, align_corners)
    # `output_mask` speaks of the image only: torch always returns the grid's gradient.
    grad_input, grad_grid = vjp(
        lambda x, g: _grid_sample(x, g, *options), (input, grid), grad_output
    )
    return grad_input if output_mask[0] else None, grad_grid


@lower("affine_grid_generator")
def affine_grid_generator(theta: Any, size: Sequence[int], align_corners: bool) -> jax.Array:
    (matrix,) = widen(theta)
    sizes = size[2:]
    axes = []
    for n in sizes:
        axis = jnp.linspace(-1, 1, n, dtype=matrix.dtype) if n > 1 else jnp.zeros(1, matrix.dtype)
        axes.append(axis if align_corners else axis * ((n - 1) / n))
    points = [*reversed(jnp.meshgrid(*axes, indexing="ij")), jnp.ones(sizes, matrix.dtype)]
    base = jnp.stack(points, -1)
    return jnp.einsum("...i,noi->n...o", base, matrix, precision=jax.lax.Precision.HIGHEST)
