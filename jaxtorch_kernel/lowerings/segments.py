"""Reductions over consecutive segments of one axis (`segment_reduce`).

The segment of each element is found by searching the segment ends; a scatter then reduces each segment. Leading
(batch) axes are folded into one, and each batch element has its own segments.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .products import multiply_at
from .promote import cast
from .registry import lower
from .sorting import search

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


class Segments:
    """Which segment each row belongs to.

    Attributes:
        lengths: how long each segment is, (batch, segments).
        ids: the segment of each row, (batch, rows); `segments` or more for rows of none.
    """

    def __init__(self, data: Any, lengths: Any, offsets: Any, axis: int):
        self.axis = axis
        self.batch = data.shape[:axis]
        self.rows, self.inner = data.shape[axis], data.shape[axis + 1 :]
        if offsets is None:
            lengths = lengths.reshape(-1, lengths.shape[-1]).astype(np.int32)
            ends, first = jnp.cumsum(lengths, -1, dtype=np.int32), 0
        else:
            offsets = offsets.reshape(-1, offsets.shape[-1]).astype(np.int32)
            ends, first, lengths = offsets[:, 1:], offsets[:, :1], jnp.diff(offsets, axis=-1)
        self.lengths = lengths
        self.count = lengths.shape[-1]
        row = jnp.broadcast_to(jnp.arange(self.rows, dtype=np.int32), (ends.shape[0], self.rows))
        self.ids = jnp.where(row >= first, search(ends, row, True), self.count)

    def rows_of(self, x: Any) -> jax.Array:
        """(batch, rows or segments, inner) from the operator's own shape."""
        return x.reshape(-1, x.shape[self.axis], int(np.prod(self.inner, dtype=np.int64)))

    def back(self, x: Any) -> jax.Array:
        """The inverse of `rows_of`."""
        return x.reshape(*self.batch, x.shape[1], *self.inner)

    def scatter(self, rows: Any, reduce: str, start: Any) -> jax.Array:
        """Reduce rows into their segments."""
        out = jnp.full((rows.shape[0], self.count, rows.shape[2]), start, rows.dtype)
        batch = jnp.arange(rows.shape[0], dtype=np.int32)[:, None]
        if reduce == "prod":
            return multiply_at(out, (batch, self.ids), rows, {"mode": "drop"})
        at = out.at[batch, self.ids]
        function = {"max": at.max, "min": at.min}.get(reduce, at.add)
        return function(rows, mode="drop")

    def gather(self, x: Any) -> jax.Array:
        """Each row's own segment of x; 0 for rows of none."""
        batch = jnp.arange(x.shape[0], dtype=np.int32)[:, None]
        return x.at[batch, self.ids].get(mode="fill", fill_value=0)


@lower("segment_reduce")
def segment_reduce(
    data: Any,
    reduce: str,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> jax.Array:
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
    grad: Any,
    output: Any,
    data: Any,
    reduce: str,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: Any = None,
) -> jax.Array:
    segments = Segments(data, lengths, offsets, axis)
    grad, output, data = (segments.rows_of(x) for x in (grad, output, data))
    if reduce == "mean":
        grad = grad / jnp.maximum(segments.lengths, 1)[:, :, None].astype(grad.dtype)
    slope = segments.gather(grad)
    if reduce in ("max", "min"):
        chosen = (data == segments.gather(output)) | (data != data)
        ties = segments.scatter(chosen.astype(grad.dtype), "sum", 0)
        slope = jnp.where(chosen, slope / segments.gather(ties), 0)
    elif reduce == "prod":
        slope *= _others(segments, data, cast(1.0 if initial is None else initial, data.dtype))
    return segments.back(slope)


def _others(segments: Segments, data: Any, start: Any) -> jax.Array:
    """For each row the product of the others of its segment, zeros among them or not."""
    zero = data == 0
    product = segments.gather(segments.scatter(jnp.where(zero, 1, data), "prod", start))
    zeros = segments.gather(segments.scatter(zero.astype(data.dtype), "sum", 0))
    return jnp.where(zeros - zero > 0, 0, product / jnp.where(zero, 1, data))
