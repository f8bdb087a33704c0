"""`jit` of whole training steps against the same steps eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_is_one_program_and_trains_the_same(name: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)]
    model = nn.Sequential(*layers).to("jax")
    twin = copy.deepcopy(model)
    inputs = torch.randn(5, 12, 8, device="jax")
    labels = torch.randint(0, 4, (5, 12), device="jax")

    def body(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    ours, theirs = (OPTIMIZERS[name](m.parameters()) for m in (model, twin))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (ours, theirs)]

    @jaxtorch.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return body(model, ours, x, y)

    for i, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        loss = step(x, y)
        if i == 2:
            compiled = jaxtorch.compile_count()
        expected = body(twin, theirs, x, y)
        torch.testing.assert_close(loss, expected.detach())
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
        for p, q in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(p, q)
        for schedule in schedules:
            schedule.step()
    assert step.cache_info().misses == 1
    assert step.cache_info().hits == 4
    # A learning rate that changes compiles nothing.
    step(x, y)
    assert jaxtorch.compile_count() <= compiled + 1  # (the argument's read, at a new place)
    assert ours.param_groups[0].get("capturable", False) is False
    assert isinstance(ours.param_groups[0]["lr"], float)


def test_a_learning_rate_is_as_exact_as_the_parameters() -> None:
    weights = [torch.zeros(2, dtype=torch.float64).to(d).requires_grad_() for d in ("jax", "cpu")]
    ours, theirs = (torch.optim.SGD([w], lr=0.1) for w in weights)

    def body(optimizer: torch.optim.Optimizer, w: torch.Tensor) -> None:
        w.sum().backward()
        optimizer.step()

    step = jaxtorch.jit(lambda: body(ours, weights[0]))
    for lr in (0.1, 0.3):  # neither is a float32
        ours.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = lr
        step()
        body(theirs, weights[1])
    torch.testing.assert_close(weights[0].cpu(), weights[1], rtol=1e-15, atol=0)


def test_gradients_accumulate() -> None:
    w = torch.ones(3, device="jax", requires_grad=True)

    @jaxtorch.jit
    def accumulate(x: torch.Tensor) -> None:
        (w * x).sum().backward()

    x = torch.arange(3.0, device="jax")
    for _ in range(4):
        accumulate(x)
    assert torch.equal(w.grad, x * 4)
    w.grad = None
    accumulate(x)
    assert torch.equal(w.grad, x)


def test_in_place_updates_and_running_averages() -> None:
    x = torch.ones(3, device="jax")
    average = torch.zeros(3, device="jax")

    @jaxtorch.jit
    def update(value: float) -> torch.Tensor:
        x.add_(value)
        average.lerp_(x, 0.5)
        x[1] = 0.0
        return average

    expected, mean = torch.ones(3), torch.zeros(3)
    for _ in range(3):
        update(2.0)
        expected += 2
        mean.lerp_(expected, 0.5)
        expected[1] = 0
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(average.cpu(), mean)


def test_an_error_leaves_everything_as_it_was() -> None:
    model = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    state = torch.jax.get_rng_state()

    @jaxtorch.jit
    def step(x: torch.Tensor) -> None:
        F.dropout(model(x)).sum().backward()
        optimizer.step()
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError):
        step(torch.ones(2, device="jax"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.jax.get_rng_state(), state)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.param_groups[0]["capturable"]


def test_an_error_leaves_the_gradients_of_default_arguments_as_they_were() -> None:
    one, two = (torch.ones(2, device="jax", requires_grad=True) for _ in range(2))
    two.grad = kept = torch.ones(2, device="jax")

    @jaxtorch.jit
    def step(a: torch.Tensor = one, *, b: torch.Tensor = two) -> None:
        (a * b).sum().backward()
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError):
        step()
    assert one.grad is None
    assert two.grad is kept
    assert torch.equal(kept.cpu(), torch.ones(2))


def test_a_scheduler_inside_is_refused() -> None:
    w = torch.ones(2, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    @jaxtorch.jit
    def step() -> None:
        w.sum().backward()
        optimizer.step()
        scheduler.step()

    with pytest.raises(CaptureError, match="outside"):
        step()
    assert optimizer.param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize(
    ("made", "write"),
    [
        ("[x.clone()]", "kept[0] = kept[0] + x"),
        ("[x.clone()]", "kept[-1] = kept[-1] + x"),
        ("[x.clone()]", "kept[0] += x"),
        ("[x.clone(), x.clone()]", "kept[0], kept[1] = kept[1] + x, kept[0] * 2"),
        ("{'a': x.clone()}", "kept['a'] = kept['a'] + x"),
        ("{'a': [x.clone()]}", "kept['a'][0] = kept['a'][0] + x"),
    ],
)
def test_a_tensor_bound_anew_at_each_run_is_one_program(made: str, write: str) -> None:
    x = torch.ones(2, device="jax")
    seen = []
    for capture in (jaxtorch.jit, lambda function: function):
        names: dict[str, Any] = {"x": x, "kept": eval(made, {"x": x})}
        exec(f"def step(x):\n    {write}\n    return x * 1", names)
        step = capture(names["step"])
        for _ in range(4):
            step(x)
        seen.append(str(names["kept"]))
        if capture is jaxtorch.jit:
            assert step.cache_info().misses == 1
    assert seen[0] == seen[1]


def test_a_program_with_other_constants_is_not_that_of_before() -> None:
    """A second trace whose constant is an array, where that of the first was a buffer's index."""
    enabled = [False]

    @jaxtorch.jit
    def product(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("jax", torch.bfloat16, enabled=enabled[0]):
            return (torch.ones(3, 3, device="jax") / 3 @ x).dtype.itemsize * x

    x = torch.arange(1.0, 4.0).to("jax")
    assert product(x).tolist() == [4, 8, 12]
    enabled[0] = True
    assert product(x).tolist() == [2, 4, 6]
    enabled[0] = False
    assert product(x).tolist() == [4, 8, 12]
