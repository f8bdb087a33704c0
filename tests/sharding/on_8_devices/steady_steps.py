"""A captured step of a placed module is traced once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch
from tests.sharding.on_8_devices.model_kinds import MODELS, STRATEGIES

Tensor = torch.Tensor
# Tensor parallel LSTMs are left out. XLA's CPU runtime runs the independent collectives of a program in any order, and
# devices may differ in it. Under load they wait for ever, some in "collective permute", others in "all to all".
CASES = [
    (kind, strategy)
    for kind in MODELS
    for strategy in STRATEGIES
    if kind != "recurrent" or "tensor" not in strategy
]
X, Y = torch.randn(24, 16), torch.randint(4, (24,))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", ["jit", "pure"])
@pytest.mark.parametrize(("kind", "strategy"), CASES)
def test_later_steps_are_not_traced(kind: str, strategy: str, way: str) -> None:
    """The parameters were guarded as the gathered copies that stand in for them, so each step was traced.

    The counts of AdamW were created on one device and written back on the mesh, so the second step was traced.
    """
    torch.manual_seed(0)
    model = STRATEGIES[strategy](MODELS[kind]())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    call: Any = jaxtorch.pure(model) if way == "pure" else model

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run: Any = jaxtorch.jit(step) if way == "jit" else step
    captured = run if way == "jit" else call
    traces = []
    for _ in range(5):
        run(X.to("jax"), Y.to("jax")).item()
        traces.append(captured.cache_info().misses)
    assert traces == [1] * 5, str(jaxtorch.insight.explain_recompiles())
