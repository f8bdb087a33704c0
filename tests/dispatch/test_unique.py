"""`unique` and `unique_consecutive` along every dimension, with every flag, as on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

Tensor = torch.Tensor
NAN, INF = float("nan"), float("inf")

INPUTS = {
    "floats": (torch.arange(24).view(4, 3, 2) * 7 % 3).float(),
    "halves": (torch.arange(10) % 2).view(5, 2).half(),
    "bfloat16": (torch.arange(10) % 2).view(5, 2).bfloat16(),
    "doubles": (torch.arange(10) % 3).view(5, 2).double(),
    "booleans": (torch.arange(10) % 3 == 0).view(5, 2),
    "integers": (torch.arange(12) % 5).view(6, 2) - 2,
    "bytes": (torch.arange(10) % 2).view(5, 2).to(torch.uint8),
    "NaN": torch.tensor([[NAN, 1.0], [NAN, 1.0], [0.0, 2.0]]),
    "infinities": torch.tensor([[INF, -INF], [1.0, 2.0], [INF, -INF]]),
    "zeros of both signs": torch.tensor([[0.0, 1.0], [-0.0, 1.0]]),
    "one row": torch.ones(1, 4),
    "one dimension": torch.tensor([3.0, 1, 3, 2]),
    "no dimension": torch.tensor(3.0),
    "no rows": torch.zeros(0, 3),
    "no columns": torch.zeros(3, 0),
    "nothing in between": torch.zeros(2, 0, 3),
}
Run = Callable[[Tensor], Tensor | tuple[Tensor, ...]]


def same(run: Run, x: Tensor) -> None:
    refusal = None
    try:
        expected = run(x)
    except (IndexError, RuntimeError) as error:
        refusal = error
    if refusal is not None:
        with pytest.raises(type(refusal)) as caught:
            run(x.to("jax"))
        # For a dimension out of range the device says the range, also where the CPU does not.
        assert "out of range" in str(caught.value) or str(caught.value) == str(refusal)
        return
    actual = run(x.to("jax"))
    if isinstance(expected, Tensor):
        actual, expected = (actual,), (expected,)  # type: ignore[assignment]
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", INPUTS)
def test_unique(name: str) -> None:
    x = INPUTS[name]
    for dim in (None, *range(-x.dim(), max(x.dim(), 1)), 5):
        for inverse, counts, ordered in itertools.product([False, True], repeat=3):
            if name == "NaN" and dim is not None:
                continue  # the order of rows with NaN is that of the algorithm
            same(
                lambda t, d=dim, i=inverse, c=counts, o=ordered: torch.unique(  # type: ignore[misc]
                    t, sorted=o or d is None, return_inverse=i, return_counts=c, dim=d
                ),
                x,
            )


@pytest.mark.parametrize("name", INPUTS)
def test_unique_consecutive(name: str) -> None:
    x = INPUTS[name]
    for dim in (None, *range(-x.dim(), max(x.dim(), 1)), 5):
        for inverse, counts in itertools.product([False, True], repeat=2):
            same(
                lambda t, d=dim, i=inverse, c=counts: torch.unique_consecutive(  # type: ignore[misc]
                    t, return_inverse=i, return_counts=c, dim=d
                ),
                x,
            )
