"""Three steps of training on the device leave the parameters that the CPU's leave."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from jaxtorch.programs import stats

from .networks import (
    Encoder,
    MobileNetwork,
    ResidualNetwork,
    SequenceClassifier,
    VisionTransformer,
)


def _images() -> torch.Tensor:
    return torch.randn(4, 3, 12, 12)


def _tokens() -> torch.Tensor:
    return torch.randint(20, (4, 7))


def _train(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], device: str) -> None:
    # Not Adam: attention's key bias has gradient 0, and Adam would divide its rounding errors by themselves.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, classes in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()


CASES = {
    "residual network": (ResidualNetwork, _images),
    "mobile network": (MobileNetwork, _images),
    "vision transformer": (VisionTransformer, _images),
    "transformer encoder": (Encoder, _tokens),
    "lstm classifier": (SequenceClassifier, _tokens),
}


@pytest.mark.parametrize(("make", "inputs"), CASES.values(), ids=CASES)
def test_training_agrees_with_the_cpu(
    make: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    on_cpu = make()
    on_device = copy.deepcopy(on_cpu).to("jax")
    batches = [(inputs(), torch.randint(5, (4,))) for _ in range(3)]
    stats.reset()
    _train(on_cpu, batches, "cpu")
    _train(on_device, batches, "jax")
    assert not stats.fallbacks()
    for (name, a), e in zip(
        on_device.state_dict().items(), on_cpu.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(
            a.cpu(), e, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("make", "inputs"), CASES.values(), ids=CASES)
def test_evaluation_agrees_with_the_cpu(
    make: Callable[[], nn.Module], inputs: Callable[[], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    on_cpu = make().eval()
    on_device = copy.deepcopy(on_cpu).to("jax")
    batch = inputs()
    with torch.no_grad():
        expected, actual = on_cpu(batch), on_device(batch.to("jax"))
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
