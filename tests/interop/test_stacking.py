"""Stacking rows and splitting stacks against `jnp.stack`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtorch.programs import stacking, stats


def rows_of(depth: int, width: int = 3) -> list[list[jax.Array]]:
    return [
        [jnp.full((2,) * column, 10 * row + column, jnp.float32) for column in range(width)]
        for row in range(depth)
    ]


@pytest.mark.parametrize("depth", [1, 3, 4, 5, 8, 10])
def test_there_and_back(depth: int) -> None:
    rows = rows_of(depth)
    stacked = stacking.stack(rows)
    for whole, column in zip(stacked, zip(*rows, strict=True), strict=True):
        np.testing.assert_array_equal(whole, jnp.stack(column))
    again = stacking.split(stacked)
    assert len(again) == depth
    for row, expected in zip(again, rows, strict=True):
        for a, b in zip(row, expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b)


def test_wide_dtypes_and_few_programs() -> None:
    with jax.enable_x64(True):
        rows = [[jnp.array([2**40 + i]), jnp.array(i, jnp.float64)] for i in range(7)]
    before = len(stats.compiled)
    for _ in range(2):
        stacked = stacking.stack(rows)
        again = stacking.split(stacked)
    assert len(stats.compiled) - before == 3
    assert [row[0].item() for row in again] == [2**40 + i for i in range(7)]
    assert again[0][1].dtype == np.float64


def test_a_stack_leaves_what_was_stacked() -> None:
    rows = rows_of(5)
    stacking.stack(rows)
    assert [row[0].item() for row in rows] == [0, 10, 20, 30, 40]
