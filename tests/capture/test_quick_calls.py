"""Calls that are found without a key: every two kinds of arguments that code can tell apart have programs of their own.

Of many kinds in random orders, so that each is asked for while any other one is the latest. The oracle is the function
itself, run eagerly on the same arguments.
"""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture import quick
from jaxtorch.capture.pure import Pure

BASE = torch.linspace(-1, 1, 8)


def on_device(**options: Any) -> torch.Tensor:
    return BASE.to("jax", **options)


def with_attribute() -> torch.Tensor:
    x = on_device()
    x.scale = 3.0
    return x


def written() -> torch.Tensor:
    x = on_device()
    return x.mul_(2)


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return on_device()


class Tagged(torch.Tensor):
    """A tensor of a class of the user's."""


KINDS: dict[str, Callable[[], Any]] = {
    "whole": on_device,
    "written": written,
    "transposed": lambda: on_device().reshape(4, 2).t(),
    "matrix": lambda: on_device().reshape(2, 4),
    "a part": lambda: torch.cat([on_device(), on_device() + 1])[:8],
    "the other part": lambda: torch.cat([on_device(), on_device() + 1])[8:],
    "every second": lambda: torch.cat([on_device(), on_device() + 1])[::2],
    "expanded": lambda: on_device()[:1].expand(8),
    "complex": lambda: on_device(dtype=torch.complex64) * (1 + 2j),
    "conjugated": lambda: (on_device(dtype=torch.complex64) * (1 + 2j)).conj(),
    "negated": lambda: (on_device(dtype=torch.complex64) * (1 + 2j)).conj().imag,
    "float64": lambda: on_device(dtype=torch.float64),
    "a leaf": lambda: on_device().requires_grad_(),
    "no leaf": lambda: on_device().requires_grad_() * 2,
    "parameter": lambda: nn.Parameter(on_device()),
    "frozen": lambda: nn.Parameter(on_device(), requires_grad=False),
    "attribute": with_attribute,
    "cpu": lambda: BASE.clone(),
    "a number": lambda: 0.5,
    "inference": inference,
    "class": lambda: on_device().as_subclass(Tagged),
}
STATES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("jax", dtype=torch.bfloat16),
    "fallback": lambda: jaxtorch.config(fallback="error"),
}


def tells(x: Any) -> torch.Tensor:
    """What code can tell of its argument, in numbers."""
    if not isinstance(x, torch.Tensor):
        return torch.full((8,), x, device="jax")
    named = {nn.Parameter: 10.0, Tagged: 20.0}.get(type(x), 0.0)
    flags = 100.0 * x.requires_grad + 200.0 * torch.is_grad_enabled() + 1000.0 * x.dim()
    square = x.as_subclass(torch.Tensor).reshape(2, 4).to("jax")
    product = torch.mm(square, square.mT).to(torch.complex64)
    return (
        x.as_subclass(torch.Tensor).sin().to("jax") * getattr(x, "scale", 1.0)
        + named
        + flags
        + product.sum()
    )


def compare(captured: Any, make: Callable[[], Any]) -> None:
    x = make()
    expected, found = tells(x), captured(x)
    torch.testing.assert_close(found.detach().cpu(), expected.detach().cpu())
    if isinstance(captured, Pure):  # what `jit` gives has no history
        assert found.requires_grad == expected.requires_grad


@pytest.mark.parametrize("door", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("seed", range(4))
def test_each_kind_of_argument_meets_its_own_program(door: Any, seed: int) -> None:
    draw = random.Random(seed)
    captured = door(tells)
    calls = [(kind, state) for kind in KINDS.values() for state in (contextlib.nullcontext,)]
    calls += [(KINDS["whole"], state) for state in STATES.values()]
    draw.shuffle(calls)
    for kind, state in calls + draw.choices(calls, k=60):
        with state():
            for _ in range(draw.randint(1, 3)):
                compare(captured, kind)


def test_one_memory_given_twice_is_told_from_two() -> None:
    captured = jaxtorch.pure(lambda x, y: x * 2 + y)
    same, other = on_device(), on_device() + 1
    for _ in range(3):
        for x, y in ((same, other), (same, same), (same, same.detach()), (other, same)):
            assert torch.equal(captured(x, y), x * 2 + y)


@pytest.mark.slow
def test_more_signatures_than_are_kept() -> None:
    captured = jaxtorch.pure(lambda x: x.cos())
    tensors = [torch.randn(n, device="jax") for n in range(1, quick.MOST + 5)]
    for x in tensors * 3:
        torch.testing.assert_close(captured(x), x.cos())
    assert captured.cache_info().misses == len(tensors)


def test_training_and_evaluating_by_turns_traces_each_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to("jax")
    captured, x = jaxtorch.pure(model), torch.randn(3, 8, device="jax")
    for mode in (True, False) * 4:
        model.train(mode)
        found = captured(x)
        if not mode:  # a run in training changes the statistics, which a second one would see
            torch.testing.assert_close(found, model(x))
    assert captured.cache_info().misses == 2


def test_a_change_of_the_argument_by_its_run_is_no_part_of_the_guard() -> None:
    @jaxtorch.jit
    def mark(x: torch.Tensor) -> torch.Tensor:
        grows = x.requires_grad
        x.requires_grad_(False)
        return x * (2 if grows else 3)

    for flag in (False, True, True, False, True, False, False, True):
        x = on_device().requires_grad_(flag)
        assert torch.equal(mark(x).detach(), on_device() * (2 if flag else 3))


def test_a_captured_function_is_freed_when_nobody_refers_to_it() -> None:
    captured = jaxtorch.pure(lambda x: x.tan())
    for _ in range(3):
        captured(on_device())
    gone = weakref.ref(captured)
    gc.disable()
    try:
        del captured
        assert gone() is None
    finally:
        gc.enable()


def test_a_call_that_needs_none_of_its_arguments() -> None:
    f = jaxtorch.pure(lambda x: x.new_ones(2))
    for _ in range(3):
        assert f(torch.zeros(3, device="jax")).tolist() == [1, 1]
