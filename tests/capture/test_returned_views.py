"""Results that share memory in eager code share it in captured code: a write to one is seen in the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from .doors import DOORS
from .doors import captured as captured

Tensor = torch.Tensor

CASES: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "flat": lambda y: (y, y.view(-1)),
    "a view first": lambda y: (y.view(-1), y),
    "three": lambda y: (y.view(3, 2), y, y.view(-1)),
    "a part first": lambda y: (y[1:], y.view(-1)),
    "a part of a part": lambda y: (y[1:], y[1:, 1:], y),
    "detached": lambda y: (y, y.detach()),
    "detached first": lambda y: (y.detach(), y),
    "a detached view": lambda y: (y.detach().view(-1), y.view(3, 2), y),
    "views without their base": lambda y: (y.view(3, 2), y.view(-1)),
    "dimensions of 1": lambda y: (y.unsqueeze(0), y.squeeze(), y.reshape(6)),
    "transposed": lambda y: (y.T, y.view(-1)),
    "transposed twice": lambda y: (y.T, y.T, y.mT.mT),
    "the same": lambda y: (y, y),
    "rows": lambda y: (*y.unbind(), y),
    "chunks": lambda y: (*y.chunk(3, 1), y.view(-1)),
    "diagonal": lambda y: (y.diagonal(), y.flatten()),
    "overlapping": lambda y: (y.view(-1).unfold(0, 3, 1), y),
    "expanded": lambda y: (y[:, :1].expand(2, 4), y),
}


@pytest.mark.parametrize("captured", [d for d in DOORS if d != "torch.compile"], indirect=True)
@pytest.mark.parametrize("grad", [False, True], ids=["", "with gradients"])
@pytest.mark.parametrize("name", CASES)
def test_a_write_to_one_is_seen_in_the_others(name: str, grad: bool, captured: Any) -> None:
    def function(x: Tensor) -> list[Tensor]:
        return list(CASES[name](x * 2))

    x = torch.arange(6.0).reshape(2, 3)
    run = captured(function)
    for written in range(len(function(x))):
        expected = function(x.clone().requires_grad_(grad))
        for _ in range(2):
            results = run(x.to("jax").requires_grad_(grad))
        with torch.no_grad():
            for values in (expected, results):
                part = values[written]
                part[(0,) * part.dim()] = 77  # a single element, for memory that overlaps
        assert [t.detach().tolist() for t in results] == [t.detach().tolist() for t in expected]


@pytest.mark.parametrize("captured", ["pure", "%%pure"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_each(name: str, captured: Any) -> None:
    def function(x: Tensor) -> list[Tensor]:
        return list(CASES[name](x * x))

    x = torch.arange(6.0).reshape(2, 3)
    run = captured(function)
    for which in range(len(function(x))):
        grads = []
        for call, device in ((function, "cpu"), (run, "jax")):
            leaf = x.clone().to(device).requires_grad_()
            result = call(leaf)[which]
            if result.requires_grad:
                result.sum().backward()
            grads.append(None if leaf.grad is None else leaf.grad.tolist())
        assert grads[0] == grads[1]
