"""A step whose checkpointed blocks follow each other: what the first returns is not stored outside the step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import jaxtorch

Tensor = torch.Tensor


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_chain_of_checkpoints_trains_as_on_the_cpu(use_reentrant: bool, momentum: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.rand(3, 4, requires_grad=use_reentrant)  # a reentrant one needs an input that does

    def losses(model: nn.Sequential, x: Tensor, captured: bool) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            for layer in model:
                x = checkpoint(layer, x.tanh(), use_reentrant=use_reentrant)
            loss = x.square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = jaxtorch.jit(step) if captured else step
        return [float(run(x)) for _ in range(3)]

    on_device = copy.deepcopy(model).to("jax")
    expected = losses(model, x, captured=False)
    on_jax = x.detach().to("jax").requires_grad_(use_reentrant)
    assert losses(on_device, on_jax, captured=True) == pytest.approx(expected, rel=1e-4)
