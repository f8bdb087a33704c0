"""Networks for images, captured whole: outputs, statistics and parameters as on the CPU.

In float64, and by default: Adam divides a gradient by its own size, and so makes of the rounding errors of float32
steps as long as any other; and torch has it count its steps in the default dtype where a program does the counting.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn

import jaxtorch
from benchmarks.training import resnet18

from ..models.networks import MobileNetwork, VisionTransformer
from .training import compile_on_cpu, compile_on_jax, moved, pure, same_state, train

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Result(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class Classifier(nn.Module):
    """A network with its loss."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Result:
        logits = self.network(images)
        return Result(nn.functional.cross_entropy(logits, labels, label_smoothing=0.1), logits)


@pytest.fixture(autouse=True)
def _in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def residual():
    return resnet18(classes=5, width=4)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def made(make):
    model = Classifier(make())
    images = torch.randn(4, 3, 12, 12)
    return model, {"images": images, "labels": torch.tensor([0, 4, 1, 1])}


@pytest.mark.parametrize(
    ("make", "way"),
    [
        *((make, pure) for make in (residual, MobileNetwork, VisionTransformer)),
        *((make, compile_on_cpu) for make in (residual, MobileNetwork, VisionTransformer)),
        (MobileNetwork, compile_on_jax),
    ],
)
def test_three_steps_of_each_optimizer_and_evaluation(make, way):
    before = jaxtorch.fallbacks()
    expected, inputs = made(make)
    model = copy.deepcopy(expected)
    call, device = way(model)
    model.to(device)
    own = moved(inputs, device)
    for optimizer_of in (sgd, adamw):
        mine = train(model, call, own, optimizer_of)
        torch.testing.assert_close(mine, train(expected, expected, inputs, optimizer_of))
        same_state(model, expected)
    model.eval()
    expected.eval()
    with torch.no_grad():
        torch.testing.assert_close(call(**own).logits.cpu(), expected(**inputs).logits)
    assert jaxtorch.fallbacks() == before


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("make", "optimizer_of"),
    [(residual, sgd), (MobileNetwork, adamw), (VisionTransformer, sgd), (VisionTransformer, adamw)],
)
def test_three_steps_as_one_program_each(make, optimizer_of):
    expected, inputs = made(make)
    model = copy.deepcopy(expected).to("jax")
    mine = train(model, model, moved(inputs, "jax"), optimizer_of, jaxtorch.jit)
    torch.testing.assert_close(mine, train(expected, expected, inputs, optimizer_of))
    same_state(model, expected)
