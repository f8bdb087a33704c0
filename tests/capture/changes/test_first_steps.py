"""The first calls of a captured training step equal eager steps, and are traced once where that is possible."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import jaxtorch

from . import first_steps
from .harness import DOORS, Row, check

CASES = [(row, door) for row in first_steps.ROWS for door in DOORS if row.applies(door)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("row", "door"), CASES, ids=[f"{r.id} [{d}]" for r, d in CASES])
def test_a_first_step(row: Row, door: str, tmp_path: Path) -> None:
    check(row, door, tmp_path)


def _traces(first: str, given: str = "") -> int:
    """How often a step is traced in four calls. `first`: what it does first."""
    names = {"torch": torch, "model": nn.Linear(2, 2).to("jax")}
    names["opt"] = torch.optim.AdamW(names["model"].parameters())
    exec(given, names)
    body = f"{first}\n(model(x) ** 2).sum().backward()\nopt.step()".replace("\n", "\n    ")
    exec(f"def step(x):\n    {body}", names)
    step = jaxtorch.jit(names["step"])
    for _ in range(4):
        step(torch.ones(2, device="jax"))
    return step.cache_info().misses


@pytest.mark.parametrize("mode", [False, True], ids=["", "under a default device"])
@pytest.mark.parametrize(
    "first",
    [
        "opt.zero_grad()",
        "model.zero_grad()",
        "for p in model.parameters(): p.grad = None",
        "for p in model.parameters(): del p.grad",
        "y = model(x); opt.zero_grad()",
    ],
)
def test_one_trace_if_old_gradients_are_discarded(first: str, mode: bool) -> None:
    with torch.device("jax") if mode else contextlib.nullcontext():  # `%jax on` sets it, too
        assert _traces(first) == 1


@pytest.mark.parametrize(
    "first",
    [
        "model.weight.grad is None\nopt.zero_grad()",
        "opt.zero_grad(set_to_none=False)",
        "pass",
        "not opt.state\nopt.zero_grad()",
    ],
)
def test_two_traces_if_the_second_call_may_differ(first: str) -> None:
    assert _traces(first) == 2


def test_torch_has_its_own_attribute_outside_of_traces() -> None:
    before = dict(vars(torch.Tensor))
    _traces("opt.zero_grad()")
    assert dict(vars(torch.Tensor)) == before
    with pytest.raises(ZeroDivisionError):
        _traces("1 / 0")
    assert dict(vars(torch.Tensor)) == before
