"""A training step of each kind of layer under fsdp gathers each parameter once, and no activation.

The batch is divided over the devices. Code that merges it with another dimension, or that indexes rows of all of it at
once, makes XLA gather it.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from tests.sharding.on_8_devices._meshes import P, Tensor, numbers

MESH = jaxtorch.mesh(8, "data")
_MOVED = re.compile(
    r"= \(?\w+\[([\d,]*)\]\S* (all-gather|all-to-all|collective-permute)(?:-start)?\("
)


class Of(nn.Module):
    """A function of a convolution's result, or the first result of a module."""

    def __init__(self, module: nn.Module, function: Callable[..., Tensor] | None = None):
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *given: Tensor) -> Tensor:
        y = self.module(*given)
        return y[0] if self.function is None else self.function(y)


def conv(*after: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), *after)


def image(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return Of(conv(), function)


def rows(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return Of(nn.Linear(16, 16), function)


def windows(x: Tensor) -> Tensor:
    """Those of a Swin transformer."""
    return x.view(-1, 8, 2, 4, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, 8).softmax(1)


SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Of(nn.MultiheadAttention(16, 4, batch_first=True)),
    "encoder": lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True),
    "encoder, norm first": lambda: nn.TransformerEncoderLayer(
        16, 4, 32, 0.0, batch_first=True, norm_first=True
    ),
    "lstm": lambda: Of(nn.LSTM(16, 16, batch_first=True)),
    "lstm, two layers": lambda: Of(nn.LSTM(16, 16, 2, batch_first=True, bidirectional=True)),
    "gru": lambda: Of(nn.GRU(16, 16, batch_first=True)),
    "conv1d": lambda: Of(nn.Conv1d(12, 12, 3)),
    "cross entropy of all rows": lambda: rows(
        lambda x: F.cross_entropy(x.view(-1, 16), x.argmax(-1).view(-1))
    ),
    "linear of all rows": lambda: nn.Sequential(nn.Flatten(0, 1), nn.Linear(16, 16)),
    "linear of all rows, sequence first": lambda: rows(
        lambda x: F.linear(
            x.transpose(0, 1).reshape(-1, 16), torch.ones(4, 16, device=x.device)
        ).view(12, -1, 4)
    ),
    "sort and gather": lambda: rows(lambda x: x.gather(-1, x.argsort(-1))),
    "cumsum": lambda: rows(lambda x: x.cumsum(1)),
}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: conv(nn.BatchNorm2d(8), nn.ReLU()),
    "max pool": lambda: conv(nn.MaxPool2d(2)),
    "overlapping max pool": lambda: conv(nn.MaxPool2d(3, 2, 1)),
    "adaptive max pool": lambda: conv(nn.AdaptiveMaxPool2d(3)),
    "average pool": lambda: conv(nn.AvgPool2d(2)),
    "adaptive average pool": lambda: conv(nn.AdaptiveAvgPool2d(3)),
    "group norm": lambda: conv(nn.GroupNorm(2, 8)),
    "instance norm": lambda: conv(nn.InstanceNorm2d(8, affine=True)),
    "pixel shuffle": lambda: conv(nn.PixelShuffle(2)),
    "bilinear": lambda: conv(nn.Upsample(scale_factor=2, mode="bilinear")),
    "nearest": lambda: conv(nn.Upsample(scale_factor=2)),
    "transposed": lambda: nn.ConvTranspose2d(8, 8, 3, stride=2),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, groups=8),
    "unfold": lambda: conv(nn.Unfold(3)),
    "linear head": lambda: conv(nn.Flatten(), nn.Linear(512, 8)),
    "grid sample": lambda: image(
        lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False)
    ),
    "reflect": lambda: image(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "windows": lambda: image(windows),
    "chunks": lambda: image(lambda x: torch.cat(x.chunk(2, 1), -1)),
    "masked mean": lambda: image(lambda x: (x * (x > 0)).sum(1) / (x > 0).sum(1).clamp(min=1)),
    "index": lambda: image(lambda x: x[:, [1, 0]]),
    "loss": lambda: image(
        lambda x: F.cross_entropy(x, x.argmax(1), reduction="none"),
    ),
    "cholesky": lambda: image(
        lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(8, device=x.device))
    ),
}


def _check(model: nn.Module, *inputs: Tensor) -> None:
    expected = copy.deepcopy(model)
    jaxtorch.fsdp(model, MESH)
    given = [jaxtorch.shard(x.to("jax"), P("data"), MESH).requires_grad_() for x in inputs]

    @jaxtorch.jit
    def step(*given: Tensor) -> list[Tensor]:
        loss = model(*given).square().mean()
        return [loss, *torch.autograd.grad(loss, [*model.parameters(), *given], allow_unused=True)]

    text = step.lower(*given).compile().as_text()
    moved = [
        (kind, math.prod(map(int, filter(None, n.split(","))))) for n, kind in _MOVED.findall(text)
    ]
    parameters = Counter(p.numel() for p in model.parameters())
    assert {kind for kind, _ in moved} <= {"all-gather"}
    assert Counter(size for _, size in moved) <= parameters
    values = [x.requires_grad_() for x in inputs]
    loss = expected(*values).square().mean()
    wanted = torch.autograd.grad(loss, [*expected.parameters(), *values], allow_unused=True)
    for ours, theirs in zip(step(*given), [loss, *wanted], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_sequences(kind: str) -> None:
    torch.manual_seed(0)
    model = SEQUENCES[kind]()
    count = 3 if kind == "attention" else 1
    _check(model, *(numbers(16, 12, 16, seed=i) for i in range(count)))


@pytest.mark.parametrize("kind", IMAGES)
def test_images(kind: str) -> None:
    torch.manual_seed(0)
    _check(IMAGES[kind](), numbers(16, 8, 8, 8))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention(batch_first: bool, weights: bool) -> None:
    """The batch is the second dimension of an input of `batch_first=False`."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first)
    x = numbers(16, 12, 16)
    swap = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))

    class Attended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = model

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(swap(x), swap(x), swap(x), need_weights=weights)[0]

    _check(Attended(), x)


def test_a_whole_transformer() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 1, 1, 32, 0.0, batch_first=True)
    _check(model, numbers(16, 12, 16), numbers(16, 10, 16, seed=1))
