"""Where captured code finds numbers that vary: globals, closures, attributes, items."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch

from .number_programs import CALLS, Tensor

_global = 0


def _of_a_global() -> Callable[[Tensor], Tensor]:
    global _global
    _global = 0

    def program(x: Tensor) -> Tensor:
        global _global
        _global += 1
        return x * _global

    return program


def _of_a_closure() -> Callable[[Tensor], Tensor]:
    n = 0

    def program(x: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return x * n

    return program


def _of_slots() -> Callable[[Tensor], Tensor]:
    class Slotted:
        __slots__ = ("n",)

    state = Slotted()
    state.n = 0

    def program(x: Tensor) -> Tensor:
        state.n += 1
        return x * state.n

    return program


def _of_a_class() -> Callable[[Tensor], Tensor]:
    class Counter:
        n = 0

    def program(x: Tensor) -> Tensor:
        Counter.n += 1
        return x * Counter.n

    return program


def _of_a_module() -> Callable[[Tensor], Tensor]:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return x * self.n

    return Counting()


def _of_a_dataclass() -> Callable[[Tensor], Tensor]:
    @dataclass
    class Counter:
        n: int = 0

    counter = Counter()

    def program(x: Tensor) -> Tensor:
        counter.n += 1
        return x * counter.n

    return program


def _of_a_property() -> Callable[[Tensor], Tensor]:
    class Counter:
        def __init__(self) -> None:
            self._n = 0

        @property
        def n(self) -> int:
            return self._n

        @n.setter
        def n(self, value: int) -> None:
            self._n = value

    counter = Counter()

    def program(x: Tensor) -> Tensor:
        counter.n += 1
        return x * counter.n

    return program


def _of_a_default() -> Callable[[Tensor], Tensor]:
    table = defaultdict(int)

    def program(x: Tensor) -> Tensor:
        table["n"] += 1
        return x * table["n"]

    return program


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize(
    "make",
    [
        _of_a_global,
        _of_a_closure,
        _of_slots,
        _of_a_class,
        _of_a_module,
        _of_a_dataclass,
        _of_a_property,
        _of_a_default,
    ],
)
def test_counters(make: Callable[[], Any], capture: Any) -> None:
    x = torch.ones(2, device="jax")
    captured = capture(make())
    assert [captured(x)[0].item() for _ in range(CALLS)] == list(range(1, CALLS + 1))
    assert captured.cache_info().misses <= 3


class OfTheClass:
    scale = 1.0


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_a_number_of_the_class_stays_there(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, x = OfTheClass(), torch.ones(2, device="jax")
    captured = capture(lambda x: x * state.scale)
    for scale in (1.0, 2.0, 3.0, 4.0):
        monkeypatch.setattr(OfTheClass, "scale", scale)
        assert captured(x).tolist() == [scale] * 2
    assert not vars(state)


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_an_owner_that_checks_what_is_assigned(capture: Any) -> None:
    class Checked:
        def __setattr__(self, name: str, value: object) -> None:
            assert type(value) is float
            super().__setattr__(name, value)

    state, x = Checked(), torch.ones(2, device="jax")
    state.scale = 1.0  # type: ignore[attr-defined]  # set here
    captured = capture(lambda x: x * state.scale)  # type: ignore[attr-defined]  # as above
    for scale in (1.0, 2.0, 3.0, 4.0):
        state.scale = scale  # type: ignore[attr-defined]  # as above
        assert captured(x).tolist() == [scale] * 2


def test_arguments_are_not_kept() -> None:
    step = jaxtorch.jit(lambda x, n: x * n)
    for n in (1, 2, 3):
        x = torch.ones(2, device="jax")
        reference = weakref.ref(x.untyped_storage().buffer)  # type: ignore[attr-defined]  # of the device
        step(x, n)
        del x
        gc.collect()
        assert reference() is None
