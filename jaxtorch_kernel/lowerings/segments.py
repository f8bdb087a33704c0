"""Reductions over consecutive segments of one axis (`segment_reduce`).

A search among the segment ends finds the segment of each element; a scatter then reduces each segment. Leading (batch)
axes are flattened into one, and each batch element has its own segments.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .products import multiply_at
from .promote import cast
from .registry import lower
from .sorting import search
from .types import Array, Scalar

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


class Segments:
    """The segment of each row.

    Attributes:
        lengths: the length of each segment, (batch, segments).
        ids: the segment of each row, (batch, rows); `count` or more for a row that is in no segment.
    """

    def __init__(self, data: Array, lengths: Array | None, offsets: Array | None, axis: int):
        self.axis = axis
        self.batch = data.shape[:axis]
        self.rows, self.inner = data.shape[axis], data.shape[axis + 1 :]
        first: Array | int
        if offsets is None:
            assert lengths is not None  # torch requires one of the two
            lengths = lengths.reshape(-1, lengths.shape[-1]).astype(np.int32)
            ends, first = jnp.cumsum(lengths, -1, dtype=np.int32), 0
        else:
            offsets = offsets.reshape(-1, offsets.shape[-1]).astype(np.int32)
            ends, first, lengths = offsets[:, 1:], offsets[:, :1], jnp.diff(offsets, axis=-1)
        self.lengths = lengths
        self.count = lengths.shape[-1]
        row = jnp.broadcast_to(jnp.arange(self.rows, dtype=np.int32), (ends.shape[0], self.rows))
        self.ids = jnp.where(row >= first, search(ends, row, True), self.count)

    def rows_of(self, x: Array) -> Array:
        """`x` as (batch, rows or segments, inner)."""
        return x.reshape(-1, x.shape[self.axis], int(np.prod(self.inner, dtype=np.int64)))

    def back(self, x: Array) -> Array:
        """The inverse of `rows_of`."""
        return x.reshape(*self.batch, x.shape[1], *self.inner)

    def scatter(self, rows: Array, reduce: str, start: Array | float) -> Array:
        """Reduce the rows of each segment."""
        out = jnp.full((rows.shape[0], self.count, rows.shape[2]), start, rows.dtype)
        batch = jnp.arange(rows.shape[0], dtype=np.int32)[:, None]
        if reduce == "prod":
            return multiply_at(out, (batch, self.ids), rows, {"mode": "drop"})
        at = out.at[batch, self.ids]
        function = {"max": at.max, "min": at.min}.get(reduce, at.add)
        return function(rows, mode="drop")

    def gather(self, x: Array) -> Array:
        """The element of `x` for the segment of each row; 0 for a row that is in no segment."""
        batch = jnp.arange(x.shape[0], dtype=np.int32)[:, None]
        return x.at[batch, self.ids].get(mode="fill", fill_value=0)


@lower("segment_reduce")
def segment_reduce(
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Scalar | None = None,
) -> Array:
    segments = Segments(data, lengths, offsets, axis)
    start = cast(_START[reduce] if initial is None else initial, data.dtype)
    total = segments.scatter(segments.rows_of(data), reduce, start)
    if reduce == "mean":
        length = segments.lengths[:, :, None]
        empty = jnp.nan if initial is None else start
        total = jnp.where(length == 0, empty, total / length.astype(total.dtype))
    return segments.back(total)


@lower("_segment_reduce_backward")
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Scalar | None = None,
) -> Array:
    segments = Segments(data, lengths, offsets, axis)
    grad, output, data = (segments.rows_of(x) for x in (grad, output, data))
    if reduce == "mean":
        grad = grad / jnp.maximum(segments.lengths, 1)[:, :, None].astype(grad.dtype)
    derivative = segments.gather(grad)
    if reduce in ("max", "min"):
        chosen = (data == segments.gather(output)) | (data != data)
        ties = segments.scatter(chosen.astype(grad.dtype), "sum", 0)
        derivative = jnp.where(chosen, derivative / segments.gather(ties), 0)
    elif reduce == "prod":
        derivative *= _others(segments, data, cast(1.0 if initial is None else initial, data.dtype))
    return segments.back(derivative)


def _others(segments: Segments, data: Array, start: Array) -> Array:
    """For each row, the product of the other rows of its segment; right even if some of them are 0."""
    zero = data == 0
    product = segments.gather(segments.scatter(jnp.where(zero, 1, data), "prod", start))
    zeros = segments.gather(segments.scatter(zero.astype(data.dtype), "sum", 0))
    return jnp.where(zeros - zero > 0, 0, product / jnp.where(zero, 1, data))
