"""Training steps that assign `.data` of parameters, captured by `jit`, against the same steps on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import jaxtorch

Tensor = torch.Tensor


def _scaled(w: Tensor) -> None:
    w.data = w.data * 0.9


def _scaled_twice(w: Tensor) -> None:
    w.data = w.data * 0.9
    w.data = w.data + 0.1


def _assigned_and_written(w: Tensor) -> None:
    w.data = w.data * 0.9
    w.data[1] *= 0.5


def _assigned_without_gradient(w: Tensor) -> None:
    with torch.no_grad():
        w.data = w.detach() * 0.9
        w[0] = 0.0


ASSIGNMENTS = [_scaled, _scaled_twice, _assigned_and_written, _assigned_without_gradient]


@pytest.mark.parametrize("computed", [False, True], ids=["moved", "computed"])
@pytest.mark.parametrize("assign", ASSIGNMENTS, ids=lambda f: f.__name__.strip("_"))
def test_steps_that_assign_data(assign: Callable[[Tensor], None], computed: bool) -> None:
    """`computed`: the first memory of the parameter is an operator's result, whose Storage reports no bytes."""
    results: list[list[Tensor]] = []
    for device in ("cpu", "jax"):
        w = nn.Parameter(torch.arange(12.0).reshape(3, 4).to(device) / 10)
        if computed:
            w.data = w.data * 1.0
        results.append(_train(w, assign, device))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def _train(w: nn.Parameter, assign: Callable[[Tensor], None], device: str) -> list[Tensor]:
    """The parameter after each step. Steps of other sizes are traced after the parameter has changed its memory."""
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (w @ x).square().sum()
        loss.backward()
        optimizer.step()
        assign(w)
        return loss

    run = step if device == "cpu" else jaxtorch.jit(step)
    seen = []
    for i in range(5):
        loss = run(torch.linspace(0, 1, 4 * (1 + i % 2)).view(4, -1).to(device))
        seen += [loss.detach().cpu(), w.detach().cpu().clone()]
    return seen
