"""Histograms in one and more dimensions.

`histc` divides by the width of a bin. `histogram` must agree with the edges that it returns, so it searches them for
each value.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from .promote import cast, kind_of
from .registry import lower
from .sorting import search
from .types import Array, Scalar


def _bounds(x: Array, low: Array, high: Array, margin: float) -> tuple[Array, Array]:
    """The bounds of the data if `low` equals `high`, widened by `margin` if those are equal too."""
    if x.size:
        same = low == high
        low, high = jnp.where(same, jnp.min(x), low), jnp.where(same, jnp.max(x), high)
    same = low == high
    return jnp.where(same, low - margin, low), jnp.where(same, high + margin, high)


@lower("histc")
def histc(self: Array, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Array:
    # Count integers, which torch supports only on cuda, without rounding.
    exact = kind_of(self.dtype) != "f"
    x = self.reshape(-1).astype(np.int64 if exact else self.dtype)
    low, high = _bounds(x, cast(min, x.dtype), cast(max, x.dtype), 1)
    if exact:
        position = (x - low) * bins // (high - low)
    else:
        position = jnp.floor((x - low) * (bins / (high - low)))
    inside = (x >= low) & (x <= high)
    slot = jnp.where(inside, jnp.clip(position, 0, bins - 1).astype(np.int32), bins)
    return jnp.zeros(bins, np.int32).at[slot].add(1, mode="drop")


def linear_edges(low: Array, high: Array, bins: int) -> Array:
    """`bins + 1` equally spaced edges, counted from the nearer end as `torch.linspace` does."""
    step = (high - low) / bins
    i = jnp.arange(bins + 1, dtype=low.dtype)
    return jnp.where(i < (bins + 1) // 2, low + step * i, high - step * (bins - i))


def count(points: Array, edges: Sequence[Array], weight: Array | None, density: bool) -> Array:
    """The number of rows of `points` in each cell of the grid; the last bins include their upper edges."""
    shape = [e.shape[0] - 1 for e in edges]
    inside = jnp.ones(points.shape[0], np.bool_)
    slots = []
    for d, e in enumerate(edges):
        x = points[:, d]
        slots.append(jnp.minimum(search(e, x, True) - 1, shape[d] - 1))
        inside &= (x >= e[0]) & (x <= e[-1])
    weights = jnp.ones_like(inside, points.dtype) if weight is None else weight.reshape(-1)
    weights = jnp.where(inside, weights, 0).astype(points.dtype)
    hist = jnp.zeros(shape, points.dtype).at[tuple(slots)].add(weights, mode="drop")
    if density:
        hist /= jnp.sum(hist)
        for d, e in enumerate(edges):
            hist /= jnp.diff(e).reshape([-1 if a == d else 1 for a in range(len(shape))])
    return hist


def _all_edges(points: Array, bins: Sequence[int], range: Sequence[Scalar] | None) -> list[Array]:
    zero = jnp.zeros((), points.dtype)
    edges = []
    for d, n in enumerate(bins):
        x = points[:, d]
        if range is not None:
            low, high = (cast(r, x.dtype) for r in range[2 * d : 2 * d + 2])
        elif x.size:
            low, high = jnp.min(x), jnp.max(x)
        else:
            low, high = zero, zero + 1
        empty = low == high
        low, high = jnp.where(empty, low - 0.5, low), jnp.where(empty, high + 0.5, high)
        edges.append(linear_edges(low, high, n))
    return edges


@lower("histogram.bins_tensor")
def histogram_edges(
    self: Array, bins: Array, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    return count(self.reshape(-1, 1), [bins], weight, density), bins


@lower("histogram.bin_ct")
def histogram(
    self: Array,
    bins: int = 100,
    range: Sequence[Scalar] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    points = self.reshape(-1, 1)
    edges = _all_edges(points, [bins], range)
    return count(points, edges, weight, density), edges[0]


@lower("_histogramdd_bin_edges")
def histogramdd_edges(
    self: Array,
    bins: list[int],
    range: Sequence[Scalar] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Array]:
    return _all_edges(self.reshape(-1, self.shape[-1]), bins, range)


@lower("_histogramdd_from_bin_cts")
def histogramdd(
    self: Array,
    bins: list[int],
    range: Sequence[Scalar] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    points = self.reshape(-1, self.shape[-1])
    return count(points, _all_edges(points, bins, range), weight, density)


@lower("_histogramdd_from_bin_tensors")
def histogramdd_from_edges(
    self: Array, bins: list[Array], weight: Array | None = None, density: bool = False
) -> Array:
    return count(self.reshape(-1, self.shape[-1]), bins, weight, density)
