"""A large value that depends on no input is computed by the program; a small one is a constant of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.capture.errors import CaptureError
from jaxtorch.insight.programs import latest

Tensor = torch.Tensor
DOORS: dict[str, Callable[[Any], Any]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}
SIDE = 4200  # a float32 matrix of this side takes 67 MiB


def _mask(x: Tensor, side: int) -> Tensor:
    rows = torch.arange(side, dtype=torch.float32, device=x.device)
    return (rows[:, None] - rows[None, :]).mul(x).amax(0)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("side", [64, SIDE])
def test_the_values_are_those_of_the_cpu(door: str, side: int) -> None:
    x = torch.tensor(2.0)
    result = DOORS[door](lambda t: _mask(t, side))(x.jax())
    assert torch.equal(result.cpu(), _mask(x, side))


@pytest.mark.parametrize("door", ["pure", "jit"])
@pytest.mark.parametrize(("side", "inside"), [(64, False), (SIDE, True)])
def test_only_large_values_are_computed_by_the_program(door: str, side: int, inside: bool) -> None:
    captured = DOORS[door](lambda t: _mask(t, side))
    captured(torch.tensor(2.0, device="jax"))
    program = latest()
    assert program is not None
    assert ("stablehlo.subtract" in (program.stablehlo() or "")) == inside


@pytest.mark.parametrize("door", ["pure", "jit"])
def test_elements_of_a_large_value_cannot_be_read_during_the_trace(door: str) -> None:
    def branch(t: Tensor) -> Tensor:
        large = torch.ones(SIDE, SIDE, device=t.device)
        return t if large[0, 0] > 0 else -t

    with pytest.raises(CaptureError, match="line"):
        DOORS[door](branch)(torch.ones(3, device="jax"))
