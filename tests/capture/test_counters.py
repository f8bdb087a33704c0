"""Counters of modules and objects in captured code, against the same code in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch

Tensor = torch.Tensor


class Counting(nn.Module):
    """Counts its calls in `n`. `flag` chooses a branch of some of the classes below."""

    def __init__(self) -> None:
        super().__init__()
        self.n: float = 0
        self.flag = False

    def forward(self, x: Tensor) -> Tensor:
        self.count()
        return x * 2

    def count(self) -> None:
        self.n += 1


class Floats(Counting):
    def count(self) -> None:
        self.n += 0.1
        self.n -= 0.3


class InALoop(Counting):
    def count(self) -> None:
        for _ in range(3):
            self.n += 1


class Doubles(Counting):
    def count(self) -> None:
        self.n *= 2
        self.n += 1


class Restarts(Counting):
    def count(self) -> None:
        self.n = 0
        self.n += 1


class MayRestart(Counting):
    def count(self) -> None:
        self.n += 1
        if self.flag:
            self.n = 5


class Either(Counting):
    def count(self) -> None:
        if self.flag:
            self.n = 5
        else:
            self.n += 2


class ByName(Counting):
    def count(self) -> None:
        self.n += 1
        if self.flag:
            setattr(self, "n", 5)  # noqa: B010  # the case


class OwnSetattr(Counting):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


class Plain:
    """An object that is no module."""

    def __init__(self) -> None:
        self.n = 0
        self.flag = False

    def __call__(self, x: Tensor) -> Tensor:
        self.n += 1
        if self.flag:
            self.n = 5
        return x * 2


class Parent(Counting):
    """`first` and `second` run the same code with different objects."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Counting(), Counting()

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return self.second(self.first(self.first(x)))


class Outside(Counting):
    """Counts in modules that it does not name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Counting(), Counting()])

    def count(self) -> None:
        for layer in self.layers:
            layer.n += 1


ONE_PROGRAM = [Counting, Floats, InALoop, Parent]
SEVERAL = [Doubles, Restarts, MayRestart, Either, ByName, OwnSetattr, Plain, Outside]


def _counts(target: Any) -> list[float]:
    modules = target.modules() if isinstance(target, nn.Module) else [target]
    return [m.n for m in modules if hasattr(m, "n")]


@pytest.mark.parametrize("capture", [jaxtorch.jit, jaxtorch.pure])
@pytest.mark.parametrize("cls", [*ONE_PROGRAM, *SEVERAL])
def test_counters_count_as_in_python(
    cls: Callable[[], Any], capture: Callable[[Callable[..., Any]], Any]
) -> None:
    ours, theirs = cls(), cls()
    run = capture(lambda x: ours(x))
    x = torch.ones(3, device="jax")
    for i in range(8):
        if i in (3, 5):
            ours.flag = theirs.flag = i == 3
        if i == 6:
            ours.n = theirs.n = 40
        run(x)
        theirs(torch.ones(3))
        assert _counts(ours) == pytest.approx(_counts(theirs), rel=1e-12, abs=0)
    if cls in ONE_PROGRAM:
        assert run.cache_info().misses == 1
