"""Numbers that are equal but not the same, 0.0 and -0.0: each call computes with its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jaxtorch
from jaxtorch.deferred.switch import switch

Tensor = torch.Tensor
Number = float | complex
Call = Callable[[Tensor, Any], Tensor]  # takes a Number, where torch's stubs want a float

REAL: list[Number] = [0.0, -0.0, 1.0, math.nan, float("nan"), -math.inf]
COMPLEX: list[Number] = [
    complex(0.5, 0.0),
    complex(0.5, -0.0),
    complex(0.0, 2.0),
    complex(-0.0, 2.0),
    complex(0.0, -0.0),
    complex(-0.0, 0.0),
]


def _mask(x: Tensor) -> Tensor:
    return torch.tensor([True, False]).to(x.device)


# A call whose result has the bits of the number, for each way that a number takes to a program.
CALLS: dict[str, Call] = {
    "masked_fill": lambda x, n: x.masked_fill(_mask(x), n),
    "masked_fill_": lambda x, n: x.clone().masked_fill_(_mask(x), n),
    "where": lambda x, n: torch.where(_mask(x), n, x),
    "full_like": lambda x, n: torch.full_like(x, n),
    "fill_": lambda x, n: x.clone().fill_(n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([1]).to(x.device), n),
    "two numbers": lambda x, n: torch.full((2,), n, dtype=x.dtype, device=x.device).masked_fill(
        _mask(x), n
    ),
}
REAL_CALLS: dict[str, Call] = {
    "nan_to_num": lambda x, n: (x * math.nan).nan_to_num(n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "infinities": lambda x, n: (x + math.inf).nan_to_num(n, n, n),
    "copysign": lambda x, n: x.add(1).copysign(n),
    "threshold": lambda x, n: F.threshold(x, 1.0, n),
    "addcmul": lambda x, n: torch.full_like(x, -0.0).addcmul(x + 1, x + 1, value=n),
}


def _bits(x: Tensor) -> list[object]:
    parts = torch.view_as_real(x) if x.is_complex() else x
    return ["nan" if math.isnan(v) else (v, math.copysign(1, v)) for v in parts.flatten().tolist()]


@pytest.fixture(params=["immediate", "deferred"])
def end(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    before = jaxtorch.config.execution
    jaxtorch.config.update(execution=request.param)
    yield switch.boundary
    switch.policy.worker.wait()
    jaxtorch.config.update(execution=before)


def _check(call: Call, x: Tensor, numbers: Sequence[Number], end: Callable[[], None]) -> None:
    for _ in range(3):
        ours = [call(x.to("jax"), n) for n in numbers]
        end()
        assert [_bits(y.cpu()) for y in ours] == [_bits(call(x, n)) for n in numbers]


@pytest.mark.parametrize("name", [*CALLS, *REAL_CALLS])
def test_real_numbers(name: str, end: Callable[[], None]) -> None:
    _check((CALLS | REAL_CALLS)[name], torch.zeros(2), REAL, end)


@pytest.mark.parametrize("name", CALLS)
def test_complex_numbers(name: str, end: Callable[[], None]) -> None:
    _check(CALLS[name], torch.zeros(2, dtype=torch.complex64), COMPLEX, end)
