"""Tensors of one value: the same by a transfer and by a program, and without a program while calls are few."""

from __future__ import annotations

import pytest
import torch

from jaxtorch.dispatch import filling
from jaxtorch.programs import stats

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
FILLS = {
    "zeros": lambda dtype, device: torch.zeros(2, 3, dtype=dtype, device=device),
    "ones": lambda dtype, device: torch.ones(2, 3, dtype=dtype, device=device),
    "full": lambda dtype, device: torch.full((2, 3), 1, dtype=dtype, device=device),
    "zeros_like": lambda dtype, device: torch.zeros_like(
        torch.empty(3, 2, dtype=dtype, device=device).T
    ),
    "full_like": lambda dtype, device: torch.full_like(
        torch.empty(0, 3, dtype=dtype, device=device), 1
    ),
    "new_ones": lambda dtype, device: torch.empty(2, device=device).new_ones(4, dtype=dtype),
    "new_full": lambda dtype, device: torch.empty(2, dtype=dtype, device=device).new_full((), 1),
    "zero_": lambda dtype, device: torch.ones(2, 3, dtype=dtype, device=device).zero_(),
    "fill_": lambda dtype, device: torch.zeros(2, 3, dtype=dtype, device=device).fill_(1),
    "fill_ transposed": lambda dtype, device: torch.zeros(2, 3, dtype=dtype, device=device).T.fill_(
        1
    ),
    "zero_ of a slice": lambda dtype, device: _zeroed_slice(dtype, device),
    "zero_ as another dtype": lambda dtype, device: _zeroed_bytes(dtype, device),
}


def _zeroed_slice(dtype: torch.dtype, device: str) -> torch.Tensor:
    x = torch.ones(4, 3, dtype=dtype, device=device)
    x[1:3].zero_()
    return x


def _zeroed_bytes(dtype: torch.dtype, device: str) -> torch.Tensor:
    x = torch.ones(4, dtype=dtype, device=device)
    x.view(torch.uint8).fill_(0)
    return x


@pytest.mark.parametrize("budget", [0, 100], ids=["program", "transfer"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FILLS)
def test_fills_are_torchs(monkeypatch, name: str, dtype: torch.dtype, budget: int) -> None:
    monkeypatch.setattr(filling, "_BUDGET", budget)
    expected = FILLS[name](dtype, "cpu")
    actual = FILLS[name](dtype, "jax")
    assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def test_a_write_is_seen_by_every_alias_and_by_autograd() -> None:
    x = torch.ones(5, device="jax")
    alias, version = x.detach(), x._version
    x.zero_()
    assert alias.sum().item() == 0
    assert x._version == version + 1
    y = torch.ones(3, device="jax", requires_grad=True)
    square = y * y
    with torch.no_grad():
        y.fill_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


@pytest.mark.parametrize("value", [300, -1, 2.5, float("nan"), 1j])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_errors_are_torchs(value: complex, dtype: torch.dtype) -> None:
    outcomes = []
    for device in ("cpu", "jax"):
        try:
            outcomes.append(torch.full((2,), value, dtype=dtype, device=device).cpu().tolist())
        except RuntimeError as error:
            outcomes.append(str(error).splitlines()[0])
    assert str(outcomes[0]) == str(outcomes[1])


def test_few_calls_compile_nothing_and_many_compile_once(monkeypatch) -> None:
    monkeypatch.setattr(filling, "_BUDGET", 5)
    before = len(stats.compiled)
    for _ in range(5):
        torch.zeros(3, 17, 19, device="jax")
    assert len(stats.compiled) == before
    for _ in range(3):
        torch.zeros(3, 17, 19, device="jax")
    assert [r.name for r in stats.compiled[before:]] == ["zeros.default"]
