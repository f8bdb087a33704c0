"""Whole training steps: nearly all of the device's time belongs to a line of the model or of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from benchmarks.models import GPT
from jaxtorch.insight.profile import Profile, profile
from tests.models.networks import ResidualNetwork

from .code import adds_up


def gpt() -> tuple[nn.Module, Callable[[Any], Any]]:
    model = GPT(2, 64, 2, 32).to("jax")
    x, y = torch.randint(256, (2, 4, 32)).to("jax")
    return model, lambda call: call(x, y)


def resnet() -> tuple[nn.Module, Callable[[Any], Any]]:
    model = ResidualNetwork().to("jax")
    images, labels = torch.randn(2, 3, 16, 16).to("jax"), torch.tensor([1, 2]).to("jax")
    return model, lambda call: F.cross_entropy(call(images), labels)


def trained(make: Any, way: str) -> tuple[Profile, nn.Module]:
    """A training step: eager, with the model under `pure`, or entirely under `jit`."""
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters())
    call = jaxtorch.pure(model) if way == "pure" else model

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(call)
        loss.backward()
        optimizer.step()
        return loss

    work = jaxtorch.jit(step) if way == "jit" else step
    profiled = profile(lambda: work(), warmup=2)
    assert profiled.recording.error is None
    return profiled, model


@pytest.mark.parametrize("way", ["eager", "pure", "jit"])
@pytest.mark.parametrize("make", [gpt, resnet])
def test_nine_tenths_of_a_step_belong_to_a_line(make: Any, way: str) -> None:
    for _ in range(3):  # a pause of the machine between two operations belongs to no line
        profiled, model = trained(make, way)
        adds_up(profiled)
        if profiled.attributed >= 0.9:
            break
    assert profiled.attributed >= 0.9
    tops = {node.name: node for node in profiled.tree.children}
    whole = tops[type(model).__name__]
    assert 0 < whole.time.backward < whole.time.total
    children = {name for name, _ in model.named_children()}
    assert {node.name.split(".")[0] for node in whole.children} & children
    assert any("step" in name for name in tops)  # the optimizer's
