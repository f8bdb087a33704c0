"""Random programs give the same values in deferred execution as in immediate: JAXTORCH_DEFERRED_PROGRAMS per mode."""

from __future__ import annotations

import os

import pytest
import torch

from . import modes
from .fuzz import observations

PROGRAMS = int(os.environ.get("JAXTORCH_DEFERRED_PROGRAMS", "6"))
FIRST = int(os.environ.get("JAXTORCH_DEFERRED_SEED", "0"))
# Modes that run the programs of immediate execution, and must give the same bits.
EXACT = ("calls", "steps")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", modes.MODES)
@pytest.mark.timeout(7200)
def test_random_programs(mode: str) -> None:
    for number in range(FIRST, FIRST + PROGRAMS):
        with modes.immediate():
            expected = observations(number)
        with modes.deferred(mode, number):
            actual = observations(number)
        assert len(actual) == len(expected), f"program {number}"
        for a, b in zip(actual, expected, strict=True):
            if mode in EXACT:
                assert torch.equal(a.nan_to_num(), b.nan_to_num()), f"program {number}"
            close = torch.allclose(a.double(), b.double(), rtol=2e-4, atol=2e-4, equal_nan=True)
            assert close, f"program {number}: {a}, not {b}"
