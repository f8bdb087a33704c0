"""Three small networks: a residual CNN, a transformer encoder, an LSTM classifier."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions around a shortcut, as in a ResNet."""

    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(y)) + self.shortcut(x)).relu()


class ResidualNetwork(nn.Module):
    """Images (N, 3, H, W) to 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = nn.functional.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1)
        return self.head(features.flatten(1))


class Encoder(nn.Module):
    """Four transformer layers over tokens (N, T), averaged into 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.positions = nn.Parameter(torch.randn(1, 7, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.tokens(tokens) + self.positions, mask=None)
        return self.head(x.mean(1))


class SequenceClassifier(nn.Module):
    """A two-layer bidirectional LSTM over tokens (N, T), its last state into 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.tokens(tokens))
        return self.head(states[:, -1])
