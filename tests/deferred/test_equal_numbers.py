"""Equal numbers of a window are one operand of its program: what happens when they are no longer equal."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from jaxtorch.deferred.equal_numbers import EqualNumbers
from jaxtorch.deferred.policy import _MOST_SPLITS
from jaxtorch.deferred.switch import switch

from .windows import compiled

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("deferred")

COUNT = 6
# A call whose result shows the sign of zero and NaN.
SHOWN = (torch.add, torch.mul, torch.div)


def _window(x: Tensor, numbers: Sequence[float]) -> list[Tensor]:
    return [SHOWN[i % 3](x, number) for i, number in enumerate(numbers)]


def _check(numbers: Sequence[float]) -> None:
    """One window, to the last bit as on the CPU."""
    x = torch.tensor([-1.5, -0.0, 0.0, 2.0])
    results = _window(x.to("jax"), numbers)
    switch.boundary()
    for ours, theirs in zip(results, _window(x, numbers), strict=True):
        assert torch.equal(ours.cpu().view(torch.int32), theirs.view(torch.int32)) or (
            torch.equal(ours.cpu().isnan(), theirs.isnan()) and math.isnan(sum(numbers))
        )


SEQUENCES: dict[str, list[list[float]]] = {
    "one number": [[0.5] * COUNT],
    "all change together": [[0.5] * COUNT, [0.25] * COUNT, [3.0] * COUNT],
    "one goes its own way": [[0.5] * COUNT, [0.5] * 5 + [0.25]],
    "a zero of each sign": [[0.5] * COUNT, [0.0, -0.0] * 3, [-0.0] * COUNT, [0.0] * COUNT],
    "zeros first": [[0.0] * COUNT, [0.0, 1.0] * 3],
    "NaN": [[math.nan] * COUNT, [0.5] * COUNT, [float("nan") for _ in range(COUNT)]],
    "infinite": [[math.inf] * COUNT, [math.inf, -math.inf] * 3],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_each_window_has_its_own_numbers(name: str) -> None:
    for _ in range(2):
        for numbers in SEQUENCES[name]:
            for _ in range(4):
                _check(numbers)


def test_complex_numbers_whose_parts_are_zeros_of_two_signs() -> None:
    x, mask = torch.zeros(2, dtype=torch.complex64), torch.tensor([True, False])
    numbers = [complex(0.5, 0.0), complex(0.5, -0.0), complex(0.0, 2.0), complex(-0.0, 2.0)]
    for _ in range(4):
        results = [x.to("jax").masked_fill(mask.to("jax"), number) for number in numbers]
        switch.boundary()
        for ours, number in zip(results, numbers, strict=True):
            theirs = x.masked_fill(mask, number)
            parts = [torch.view_as_real(y).view(torch.int32) for y in (ours.cpu(), theirs)]
            assert torch.equal(*parts)


@pytest.mark.parametrize("seed", range(3))
def test_numbers_that_are_equal_by_chance_compile_few_programs(seed: int) -> None:
    chosen, before = random.Random(seed), len(compiled())
    for _ in range(60):
        _check([chosen.choice([0.5, 0.25, 2.0]) for _ in range(COUNT)])
    assert 1 <= len(compiled()) - before <= 1 + _MOST_SPLITS


def test_numbers_that_differ_once_in_a_while_compile_one_more_program() -> None:
    before = len(compiled())
    for i in range(30):
        _check([0.5] * (COUNT - 1) + [0.25 if i % 5 == 4 else 0.5])
    assert len(compiled()) == before + 2


def test_a_rate_that_equals_the_weight_decay_at_first_compiles_nothing_when_it_changes() -> None:
    with torch.device("jax"):
        model, x = nn.Linear(4, 4), torch.ones(2, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 if i < 3 else 0.5**i)
    before = len(compiled())
    for _ in range(8):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        schedule.step()
    assert len(compiled()) == before + 1


def test_groups_of_an_optimizer_with_rates_that_drift_apart() -> None:
    def trained(device: str) -> tuple[list[Tensor], int]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).to(device)
        groups = [{"params": layer.parameters()} for layer in model]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        rates = [
            lambda i: 1.0,
            lambda i: 1 / (1 + i),
            lambda i: 0.0 if i % 2 else 1.0,
            lambda i: 0.5,
        ]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
        before = len(compiled())
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(2, 4, device=device)).square().sum().backward()
            optimizer.step()
            schedule.step()
        return [p.detach().cpu() for p in model.parameters()], len(compiled()) - before

    (ours, programs), (theirs, _) = trained("jax"), trained("cpu")
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert programs <= 1 + _MOST_SPLITS


def test_a_split_never_joins_numbers() -> None:
    chosen = random.Random(0)
    for _ in range(200):
        kinds = [chosen.choice("if") for _ in range(5)]

        windows = [
            [(kind, chosen.choice([0, 1, 2] if kind == "i" else [0.0, 1.0, 2.0])) for kind in kinds]
            for _ in range(2)
        ]
        first, second = windows
        groups = EqualNumbers(first, [None] * len(first))
        split = groups.split(second)
        for window in windows:
            values = split.values(window)
            assert values is not None
            assert [values[g] for g in split.group_of] == [v for _, v in window]
        for i in range(5):
            for j in range(i):
                if split.group_of[i] == split.group_of[j]:
                    assert groups.group_of[i] == groups.group_of[j]
