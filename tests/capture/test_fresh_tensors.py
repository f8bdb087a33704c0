"""A tensor that captured code makes from no input, reads, and writes to afterwards, as every GAN's labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch

Tensor = torch.Tensor


def _label(x: Tensor) -> Any:
    label = torch.full((4,), 1.0, device=x.device)
    real = (x * label).sum()
    label.fill_(0.0)
    return real, (x + label).sum()


def _view(x: Tensor) -> Any:
    label = torch.zeros(4, device=x.device)
    first = x + label
    label[1:3] = 5
    second = x * label
    label.view(2, 2)[0].add_(1)
    return first, second, x - label, label


def _then_traced(x: Tensor) -> Any:
    label = torch.ones(4, device=x.device)
    first = x * label
    label.mul_(3)
    second = x * label
    label.add_(x)
    return first, second, label


def _random(x: Tensor) -> Any:
    counter = torch.arange(4, device=x.device)
    first = x * counter
    counter += 1
    return first, x * counter, counter.float().clone().fill_(2) * x


CASES: dict[str, Callable[[Tensor], Any]] = {
    "fill_": _label,
    "through views": _view,
    "by an input": _then_traced,
    "counter": _random,
}


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("name", CASES)
def test_each_read_has_the_value_of_its_time(name: str, capture: Any) -> None:
    function = CASES[name]
    captured = capture(function)
    for start in (0.0, 2.0):
        x = torch.arange(4.0) + start
        found = [t.cpu() for t in captured(x.to("jax"))]
        torch.testing.assert_close(found, list(function(x)))


def test_one_that_stays() -> None:
    """Kept outside, it is state: each call writes it again."""
    kept: dict[str, Tensor] = {}

    @jaxtorch.jit
    def step(x: Tensor) -> Tensor:
        kept["label"] = label = torch.ones(4, device="jax")
        real = (x * label).sum()
        label.fill_(0.5)
        return real + (x * label).sum()

    for start in (0.0, 2.0, 3.0):
        x = torch.arange(4.0, device="jax") + start
        assert step(x).item() == x.sum().item() * 1.5
        assert kept["label"].tolist() == [0.5] * 4
