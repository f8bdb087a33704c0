"""The hot path remembers operands of numbers and of views: what it remembers must be what is asked for."""

from __future__ import annotations

import math

import pytest
import torch

NUMBERS = [0.0, -0.0, 1, 1.0, True, False, 2.5, math.inf, math.nan, -3, 0, 2**40, 1 + 2j]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_one_number_after_another_of_equal_value_and_other_kind(dtype: torch.dtype) -> None:
    cpu = torch.tensor([-2, 0, 3], dtype=dtype)
    jax = cpu.to("jax")
    for _ in range(
        3
    ):  # the first call builds, the second remembers, the third reads what was remembered
        for number in NUMBERS:
            ours, theirs = (x * number for x in (jax, cpu))
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)
            if theirs.is_floating_point():
                assert torch.equal(
                    ours.signbit().cpu() | ours.isnan().cpu(), theirs.signbit() | theirs.isnan()
                )


def test_views_of_changing_start_and_numbers_of_changing_value() -> None:
    cpu = torch.arange(12.0).reshape(4, 3)
    jax = cpu.to("jax")
    for _ in range(3):
        for i in range(4):
            assert torch.equal((jax[i] + i).cpu(), cpu[i] + i)
            assert torch.equal((jax[i] * jax[3 - i]).cpu(), cpu[i] * cpu[3 - i])
            assert torch.equal((jax[:, i % 3] - 0.5).cpu(), cpu[:, i % 3] - 0.5)
