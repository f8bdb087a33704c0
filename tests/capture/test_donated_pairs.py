"""Programs that write keep each tensor in its own memory: XLA need not copy what a step replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.deferred.switch import switch

Tensor = torch.Tensor
Step = Callable[[], object]


def _eager(step: Step) -> Step:
    """One window of deferred calls for each step."""

    def run() -> object:
        result = step()
        switch.boundary()
        switch.policy.worker.wait()
        return result

    return run


WAYS: dict[str, Callable[[Step], Step]] = {
    "jit": jaxtorch.jit,
    "deferred": _eager,
    "immediate": lambda step: step,
}


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Iterator[Callable[[Step], Step]]:
    before = jaxtorch.config.execution
    jaxtorch.config.update(execution="deferred" if request.param == "deferred" else "immediate")
    yield WAYS[request.param]
    jaxtorch.config.update(execution=before)


def _training(
    optimizer: Callable[[Any], torch.optim.Optimizer], *others: nn.Module
) -> tuple[Step, list[Tensor]]:
    """A step that returns a tensor of the parameters' shape; what it writes."""
    with torch.device("jax"):
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)), *others).to("jax")
        x = torch.randn(16, 16)
    stepped = optimizer(model.parameters())

    def step() -> Tensor:
        stepped.zero_grad()
        y = model(x)
        y.square().mean().backward()
        stepped.step()
        return y.detach()

    step()
    states = [v for s in stepped.state.values() for v in s.values() if v.dim()]
    parameters = [p.detach() for p in model.parameters()]
    return step, [*parameters, *states, *(b for b in model.buffers() if b.dim())]


def _last_first() -> tuple[Step, list[Tensor]]:
    written = [torch.full((16, 16), float(i), device="jax") for i in range(4)]

    def step() -> Tensor:
        total = sum(written)
        for i, t in reversed(list(enumerate(written))):
            t.mul_(0.5).add_(i)
        return total * 2

    return step, written


STEPS: dict[str, Callable[[], tuple[Step, list[Tensor]]]] = {
    "AdamW": lambda: _training(torch.optim.AdamW),
    "SGD": lambda: _training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "BatchNorm": lambda: _training(torch.optim.SGD, nn.BatchNorm1d(16)),
    "foreach": lambda: _training(lambda p: torch.optim.RMSprop(p, lr=0.1)),
    "last written first": _last_first,
}


def _addresses(tensors: list[Tensor]) -> list[int]:
    return [jaxtorch.to_jax(t).unsafe_buffer_pointer() for t in tensors]


# The eager program of a batch norm returns its results first: it copies the two vectors of its statistics.
NOT_IMMEDIATE = {"BatchNorm"}


@pytest.mark.parametrize(
    ("way", "name"),
    [(w, s) for w in WAYS for s in STEPS if not (w == "immediate" and s in NOT_IMMEDIATE)],
    indirect=["way"],
)
def test_what_a_step_writes_keeps_its_memory(way: Callable[[Step], Step], name: str) -> None:
    plain, written = STEPS[name]()
    step = way(plain)
    kept = [step() for _ in range(4)]  # the results of each step have memory of their own
    before = _addresses(written)
    kept.append(step())
    assert _addresses(written) == before
