"""`torch.unique` and related operators: rows are sorted and grouped, the number of groups is read, rows are gathered.

The first program computes the group number of each row (an element, or a slice along a dimension). The second, whose
size is rounded up as in `dynamic.py`, takes the first row of each group. A NaN equals nothing, so each NaN is a group
of its own, as on the CPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..dispatch.registry import kernel
from ..lowerings.sorting import sort_with_index
from .dynamic import first_rows, program, read, rounded

Tensor = torch.Tensor
Triple = tuple[Tensor, Tensor, Tensor]


def _lexicographic(rows: jax.Array) -> jax.Array:
    """The stable order of rows: one stable sort by each column, from the last to the first."""
    order = jnp.arange(rows.shape[0], dtype=np.int32)
    columns = rows.shape[1]

    def by_column(i: jax.Array, order: jax.Array) -> jax.Array:
        return order[sort_with_index(rows[order, columns - 1 - i], 0)[1]]

    return jax.lax.fori_loop(0, columns, by_column, order)


def _groups(x: jax.Array, dim: int | None, ordered: bool) -> tuple[jax.Array, ...]:
    """The rows in order, the original index and the group of each, and the number of groups."""
    rows = x.reshape(-1, 1) if dim is None else jnp.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
    order = _lexicographic(rows) if ordered else jnp.arange(rows.shape[0], dtype=np.int32)
    rows = rows[order]
    starts = (rows[1:] != rows[:-1]).any(1)
    group = jnp.concatenate([jnp.zeros(1, np.int32), jnp.cumsum(starts, dtype=np.int32)])
    return rows, order, group, group[-1] + 1


def _firsts(
    rows: jax.Array, order: jax.Array, group: jax.Array, size: int
) -> tuple[jax.Array, ...]:
    """The first row of each group, the group of each original row, and the size of each group."""
    index = jnp.arange(rows.shape[0], dtype=np.int32)
    first = jnp.full(size, rows.shape[0] - 1, np.int32).at[group].min(index)
    inverse = jnp.zeros(rows.shape[0], np.int64).at[order].set(group.astype(np.int64))
    return rows[first], inverse, jnp.zeros(size, np.int64).at[group].add(1)


_groups_program = program(_groups)
_firsts_program = program(_firsts)


def _unique(
    self: Tensor,
    dim: int | None,
    ordered: bool,
    return_inverse: bool,
    return_counts: bool,
    name: str,
) -> Triple:
    count = self.dim()
    if dim is not None and not count:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    if dim is not None and not -count <= dim < count:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})"
        )
    dim = None if dim is None else dim % count
    along = self.shape if dim is None else self.shape[dim : dim + 1]
    none = torch.empty(0, dtype=torch.int64, device="jax")
    if not self.numel():
        if dim is not None and self.shape[dim]:
            raise RuntimeError(
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
            )
        inverse = torch.empty(along, dtype=torch.int64, device="jax") if return_inverse else none
        shape = (0,) if dim is None else self.shape
        return torch.empty(shape, dtype=self.dtype, device="jax"), inverse, none
    rows, order, group, count_tensor = _groups_program(self, dim, ordered)
    count = int(read(count_tensor, name))
    size = rounded(count, rows.shape[0])
    firsts, inverse, counts = _firsts_program(rows, order, group, size)
    values = first_rows(firsts, count)
    if dim is None:
        values = values.view(count)
    else:
        rest = [n for d, n in enumerate(self.shape) if d != dim]
        values = values.view(count, *rest).movedim(0, dim)
    return (
        values,
        inverse.view(along) if return_inverse else none,
        first_rows(counts, count) if return_counts else none,
    )


@kernel("_unique2")
def unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Triple:
    """The distinct elements in order."""
    return _unique(self, None, True, return_inverse, return_counts, "unique")


@kernel("_unique")
def unique(
    self: Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[Tensor, Tensor]:
    """`_unique2` without counts."""
    return _unique(self, None, True, return_inverse, False, "unique")[:2]


@kernel("unique_dim")
def unique_dim(
    self: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Triple:
    """The distinct slices along a dimension, in order."""
    return _unique(self, dim, True, return_inverse, return_counts, "unique")


@kernel("unique_consecutive")
def unique_consecutive(
    self: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Triple:
    """The first of each run of equal elements, or of equal slices along a dimension."""
    return _unique(self, dim, False, return_inverse, return_counts, "unique_consecutive")


@kernel("unique_dim_consecutive")
def unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Triple:
    """`unique_consecutive` along a dimension."""
    return _unique(self, dim, False, return_inverse, return_counts, "unique_consecutive")
