"""Float64 decides where the CPU's own rounding is the reason of a difference, and excuses nothing else."""

from __future__ import annotations

import doctest

import pytest
import torch

from . import comparison
from .comparison import as_near_to_float64, compare
from .database import entries, on, samples

FLOAT = torch.float64
EXACT = torch.tensor([1.0, 2.0, -3.0, 1e8], dtype=FLOAT)


def _off(*errors: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (EXACT + torch.tensor(errors, dtype=FLOAT)).to(dtype)


@pytest.mark.parametrize(
    ("ours", "cpu", "agrees"),
    [
        ((0, 0, 0, 0), (0.5, 0, 0, 0), True),  # ours is exact, whatever the CPU does
        ((0, 0.9e-3, 0, 0), (1e-3, 0, 0, 0), True),  # an error as large as the CPU's, elsewhere
        ((1.9e-3, 0, 0, 0), (0, 1e-3, 0, 0), True),  # and one bit more
        ((2.2e-3, 0, 0, 0), (0, 1e-3, 0, 0), False),
        ((1e-3, 0, 0, 0), (0, 0, 0, 0), False),  # the CPU is exact
        ((1e-3, 0, 0, 0), (0, 0, 0, 1e5), False),  # the CPU is off in a huge element alone
        ((0, 0, 0, 1e5), (0, 0, 0, 1e5), True),
        ((2.0, 0, 0, 0), (2.0, 0, 0, 0), False),  # the CPU's is not a rounding error
        ((1e-3, 0, 0, 0), (float("nan"), 0, 0, 0), False),  # the CPU's nan excuses nothing
        ((float("nan"), 0, 0, 0), (float("nan"), 0, 0, 0), False),
        ((float("inf"), 0, 0, 0), (float("inf"), 0, 0, 0), False),
    ],
)
def test_what_float64_excuses(
    ours: tuple[float, ...], cpu: tuple[float, ...], agrees: bool
) -> None:
    assert as_near_to_float64(_off(*ours), _off(*cpu), EXACT) is agrees


def test_infinities_of_float64_are_results() -> None:
    exact = torch.tensor([1.0, float("inf"), float("nan")], dtype=FLOAT)
    right, wrong = exact.float(), torch.tensor([1.0, 2.0, float("nan")])
    assert as_near_to_float64(right, right, exact)
    assert not as_near_to_float64(wrong, right, exact)
    assert not as_near_to_float64(wrong, wrong, exact)


def test_float64_of_another_shape_or_dtype_decides_nothing() -> None:
    value = torch.ones(2)
    assert not as_near_to_float64(value, value, torch.ones(3, dtype=FLOAT))
    assert not as_near_to_float64(value, value, torch.ones(2))


def test_it_is_asked_only_about_rounded_values() -> None:
    def exact() -> object:
        return torch.tensor([3.0], dtype=FLOAT)

    on_jax = torch.tensor([3.0]).to("jax")
    compare(on_jax, torch.tensor([3.1]), True, exact)
    with pytest.raises(AssertionError):
        compare(on_jax, torch.tensor([3.1]), True)
    with pytest.raises(AssertionError, match="for torch"):
        compare(on_jax.double(), torch.tensor([3.1]), True, exact)
    with pytest.raises(AssertionError):
        compare(torch.tensor([3]).to("jax"), torch.tensor([4]), True, exact)


def test_a_wide_sample_has_the_same_numbers() -> None:
    op = entries()["add"]
    sample = next(samples(op, "backward", torch.float32))
    wide = on(op, sample, "cpu", wide=True)
    assert wide.input.dtype == FLOAT
    assert wide.input.requires_grad
    assert torch.equal(wide.input.float(), sample.input)


def test_doctests() -> None:
    assert doctest.testmod(comparison).failed == 0
