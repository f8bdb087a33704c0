"""A whole eager training step (forward, backward, optimizer) compared with torch on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

from .harness import Row, compare


class Block(nn.Module):
    """A residual block of ResNet-18 (He et al. 2015, figure 5 left)."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.down(x))


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 for small images: a 3x3 stem, no pooling before the blocks."""
    layers, inputs = [], width
    for i in range(4):
        outputs = width * 2**i
        for stride in (1 if i == 0 else 2, 1):
            layers.append(Block(inputs, outputs, stride))
            inputs = outputs
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*stem, *layers, *head)


def mlp() -> nn.Module:
    """Three layers of 256."""
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


class Transformer(nn.Module):
    """Four encoder layers of width 128 over 64 tokens, and a mean-pooled head."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


def step_of(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    """One ordinary training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    return step


def rows() -> Iterator[Row]:
    """One row per model."""
    torch.manual_seed(0)
    models = {
        "MLP, batch 128": (mlp(), torch.randn(128, 64), 20, 15),
        "transformer, batch 16": (Transformer(), torch.randn(16, 64, 128), 2, 7),
        "ResNet-18, batch 8 of 32x32": (resnet18(), torch.randn(8, 3, 32, 32), 1, 5),
    }
    for name, (model, inputs, calls, rounds) in models.items():
        labels = torch.randint(0, 10, (inputs.shape[0],))
        ours = copy.deepcopy(model).to("jax")
        contestants = {
            "jaxtorch": step_of(ours, inputs.to("jax"), labels.to("jax")),
            "torch CPU": step_of(model, inputs, labels),
        }
        yield compare(
            f"training step, {name}",
            contestants,
            lambda: torch.jax.synchronize(),
            calls,
            rounds,
            against="torch CPU",
        )
