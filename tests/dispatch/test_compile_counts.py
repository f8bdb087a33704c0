"""What must not compile again: the second round of a loop, whatever numbers change in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import jaxtorch


def compiles(round_: Callable[[int], object], rounds: int = 4) -> list[int]:
    """How many programs each round compiled."""
    counts = []
    for i in range(rounds):
        before = jaxtorch.compile_count()
        round_(i)
        counts.append(jaxtorch.compile_count() - before)
    return counts


def test_scalars_are_operands() -> None:
    x = torch.ones(5, device="jax")

    def round_(i: int) -> None:
        y = x * (i + 0.5) + i
        # (An alpha of 1 is the default, which torch leaves out of the call: another program.)
        y = torch.add(y, x, alpha=i + 2)
        y = y.clamp(-i, i + 1.0)
        y = torch.lerp(y, x, 0.1 * i)
        y.mul_(i + 2).add_(float(i))
        torch.where(y > i, y, float(i))

    assert compiles(round_)[1:] == [0, 0, 0]


def test_indices_are_operands() -> None:
    x = torch.arange(60.0, device="jax").reshape(6, 10)

    def round_(i: int) -> None:
        x[i]
        x[i] + 1
        x[i : i + 2] * 2
        x[:, i] - 1
        x[i] = 3
        x[i, i + 1] = float(i)
        x.narrow(0, i, 2).add_(1)

    assert compiles(round_)[1:] == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
        lambda p: torch.optim.RMSprop(p, lr=0.1),
    ],
    ids=["sgd", "adam", "adamw-single", "rmsprop"],
)
def test_training_steps_with_a_schedule(make: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("jax")
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    x, y = torch.randn(3, 4, device="jax"), torch.tensor([0, 1, 0], device="jax")

    def round_(_: int) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()

    counts = compiles(round_)
    # The first step makes the optimizer's state, the second is the first to update it.
    assert counts[2:] == [0, 0]
