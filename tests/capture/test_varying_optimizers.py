"""Optimizers that count in Python, and schedules of settings other than the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch

from .number_programs import CALLS, State, Tensor


def problem(device: str) -> tuple[nn.Module, Tensor]:
    """A model and its input; the same on each device."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(device)
    return model, torch.linspace(-1, 1, 12).reshape(4, 3).to(device)


def train(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """The loss before a step of the optimizer."""
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


class Adam(torch.optim.Optimizer):
    """As many people write it. `where`: where it counts its steps."""

    def __init__(self, parameters: Any, where: str) -> None:
        super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.99)})
        self.where = where
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        self.count += 1
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                t = {"state": state["step"], "group": group["step"], "self": self.count}[self.where]
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                denominator = (state["v"].sqrt() / math.sqrt(1 - beta2**t)).add_(1e-8)
                p.addcdiv_(state["m"], denominator, value=-group["lr"] / (1 - beta1**t))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("where", ["state", "group", "self"])
def test_an_optimizer_that_counts_in_python(where: str, scheduled: bool) -> None:
    losses: list[list[float]] = []
    for device in ("cpu", "jax"):
        model, x = problem(device)
        optimizer = Adam(model.parameters(), where)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def body(
            model: nn.Module = model, x: Tensor = x, optimizer: torch.optim.Optimizer = optimizer
        ) -> Tensor:
            return train(model, x, optimizer)

        step: Any = body if device == "cpu" else jaxtorch.jit(body)
        losses.append([])
        for _ in range(CALLS):
            losses[-1].append(float(step()))
            if scheduled:
                scheduler.step()
        assert optimizer.count == optimizer.param_groups[0]["step"] == CALLS
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]))
    assert step.cache_info().misses <= 4


class ReadsItsRate(torch.optim.SGD):
    """Needs its learning rate as a number, so that its step is traced twice, and counts its steps."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            rate = float(group["lr"])
            for p in group["params"]:
                p.sub_(p.grad * (rate / group["k"]))


def test_a_step_that_is_traced_again_with_its_rate_as_a_number() -> None:
    weights = []
    for device in ("cpu", "jax"):
        w = torch.ones(3, device=device, requires_grad=True)
        optimizer = ReadsItsRate([w], lr=0.1)

        def body(w: Tensor = w, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            w.square().sum().backward()
            optimizer.step()

        step = body if device == "cpu" else jaxtorch.jit(body)
        for _ in range(CALLS):
            step()
        assert optimizer.param_groups[0]["k"] == CALLS
        weights.append(w.detach().cpu())
    torch.testing.assert_close(*weights)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD, nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
}


class ChangesWeightDecay:
    """A schedule of another setting, as people write it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups = optimizer.param_groups

    def step(self) -> None:
        for group in self.groups:
            group["weight_decay"] = group["weight_decay"] * 0.8 + 0.01


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "weight decay": ChangesWeightDecay,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_schedules_of_other_settings_than_the_learning_rate(name: str, schedule: str) -> None:
    """`OneCycleLR` and `CyclicLR` change the momentum, or `betas`, at each step."""
    losses: list[list[float]] = []
    for device in ("cpu", "jax"):
        model, x = problem(device)
        optimizer = OPTIMIZERS[name](model.parameters())
        scheduler = SCHEDULES[schedule](optimizer)

        def body(
            model: nn.Module = model, x: Tensor = x, optimizer: torch.optim.Optimizer = optimizer
        ) -> Tensor:
            return train(model, x, optimizer)

        step: Any = body if device == "cpu" else jaxtorch.jit(body)
        settings = []
        losses.append([])
        for _ in range(CALLS):
            losses[-1].append(float(step()))
            scheduler.step()
            settings.append(
                {k: v for k, v in optimizer.param_groups[0].items() if isinstance(v, float | tuple)}
            )
        if device == "cpu":
            expected = settings
    assert settings == expected
    torch.testing.assert_close(
        torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-5, atol=1e-6
    )
    assert step.cache_info().misses <= 3


def test_lowering_a_step_leaves_its_count() -> None:
    w = torch.ones(3, device="jax", requires_grad=True)
    optimizer = Adam([w], "group")

    @jaxtorch.jit
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()

    x = torch.ones(3, device="jax")
    for _ in range(3):
        step(x)
    step.lower(torch.ones(1, device="jax"))  # traced, and not run
    assert (optimizer.param_groups[0]["step"], optimizer.count) == (3, 3)
    assert optimizer.state[w]["step"] == 3
    step(torch.ones(1, device="jax"))
    assert (optimizer.param_groups[0]["step"], optimizer.count) == (4, 4)


def test_lowering_a_step_with_settings_that_vary() -> None:
    w = torch.ones(3, device="jax", requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

    @jaxtorch.jit
    def step() -> None:
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
        scheduler.step()
    w.requires_grad_()
    before = dict(optimizer.param_groups[0])
    step.clear_cache()
    step.lower()
    assert optimizer.param_groups[0] == before
    assert list(map(type, optimizer.param_groups[0]["betas"])) == [float, float]


RATES: dict[str, Callable[[State, Any], float | None]] = {
    "a schedule in the step": lambda s, rate: 0.05 * (1 + math.cos(math.pi * s.n / 20)),
    "an argument": lambda s, rate: rate,
    "by a counter": lambda s, rate: 0.1 / s.n,
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_a_learning_rate_that_the_step_sets_before_the_optimizer(name: str, rate: str) -> None:
    losses: list[list[float]] = []
    for device in ("cpu", "jax"):
        model, x = problem(device)
        optimizer, state = OPTIMIZERS[name](model.parameters()), State()

        def body(
            x: Tensor,
            given: float,
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            state: State = state,
        ) -> Tensor:
            state.n += 1
            for group in optimizer.param_groups:
                group["lr"] = RATES[rate](state, given)
            return train(model, x, optimizer)

        step: Any = body if device == "cpu" else jaxtorch.jit(body)
        losses.append([float(step(x, 0.1 / (i + 1))) for i in range(CALLS)])
        assert optimizer.param_groups[0]["lr"] == RATES[rate](state, 0.1 / CALLS)
        assert type(optimizer.param_groups[0]["lr"]) is float
    torch.testing.assert_close(
        torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-5, atol=1e-6
    )
    assert step.cache_info().misses <= 3
