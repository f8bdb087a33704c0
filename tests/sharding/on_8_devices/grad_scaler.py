"""`torch.amp.GradScaler` on sharded parameters: losses, skipped steps and scales as on one device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError
from tests.sharding.on_8_devices._meshes import Tensor, numbers

OVERFLOW = 2  # the step in which the gradients are infinite


def trained(way: str, fused: bool | None, shard: bool) -> tuple[list[float], list[float], float]:
    """The losses of five steps, the last weights and the last scale."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    model = jaxtorch.fsdp(model, jaxtorch.mesh(4, "data")) if shard else model.to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("jax", init_scale=2.0**10, growth_interval=2)
    x = numbers(8, 4).to("jax")

    def gradients(factor: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) * factor).square().mean()
        scaler.scale(loss).backward()
        return loss

    def update() -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    def step(factor: Tensor) -> Tensor:
        loss = gradients(factor)
        update()
        return loss

    if way == "jit":
        call = jaxtorch.jit(step)
    elif way == "gradients in jit":
        call = jaxtorch.jit(gradients)
    else:
        call = gradients
    losses = []
    for i in range(5):
        factor = torch.tensor(float("inf") if i == OVERFLOW else 1.0, device="jax")
        losses.append(call(factor).item())
        if way != "jit":
            update()
    return losses, model[2].weight.flatten().tolist(), scaler.get_scale()


@pytest.mark.parametrize("fused", [None, True, False])
@pytest.mark.parametrize("way", ["eager", "gradients in jit"])
def test_training(way: str, fused: bool | None) -> None:
    expected_losses, expected_weights, expected_scale = trained("eager", fused, shard=False)
    losses, weights, scale = trained(way, fused, shard=True)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert losses[OVERFLOW] == float("inf")
    assert losses[4] < losses[3] < losses[1]  # the steps after the skipped one
    assert weights == pytest.approx(expected_weights, rel=1e-4, abs=1e-6)
    assert scale == expected_scale == 2.0**11  # doubled, halved, doubled


@pytest.mark.parametrize("shard", [True, False])
def test_the_step_of_the_scaler_in_jit_is_an_error(shard: bool) -> None:
    """It branches on whether a gradient is infinite."""
    with pytest.raises(CaptureError, match="move this line outside the captured code"):
        trained("jit", None, shard)
