"""Small networks: two CNNs, a vision transformer, a transformer encoder, an LSTM classifier."""

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


class Excitation(nn.Module):
    """Squeeze and excitation: each channel times a number that all channels' means decide."""

    def __init__(self, channels: int):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = nn.functional.adaptive_avg_pool2d(x, 1)
        return x * nn.functional.hardsigmoid(self.excite(self.squeeze(means).relu()))


class InvertedBlock(nn.Module):
    """Widen, convolve each channel by itself, narrow: a block of MobileNetV3 (Howard et al. 2019, figure 4)."""

    def __init__(self, into: int, out: int, kernel: int, stride: int):
        super().__init__()
        wide = 4 * into
        self.residual = stride == 1 and into == out
        self.layers = nn.Sequential(
            nn.Conv2d(into, wide, 1, bias=False),
            nn.BatchNorm2d(wide, eps=1e-3, momentum=0.01),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide, eps=1e-3, momentum=0.01),
            nn.Hardswish(),
            Excitation(wide),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out, eps=1e-3, momentum=0.01),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


class MobileNetwork(nn.Module):
    """Images (N, 3, H, W) to 5 classes by depthwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, padding=1, bias=False),
            nn.BatchNorm2d(8, eps=1e-3, momentum=0.01),
            nn.Hardswish(inplace=True),
            InvertedBlock(8, 8, 3, 1),
            InvertedBlock(8, 12, 5, 2),
            InvertedBlock(12, 12, 5, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(12, 16),
            nn.Hardswish(inplace=True),
            nn.Linear(16, 5),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


class VisionTransformer(nn.Module):
    """Images (N, 3, 12, 12) to 5 classes: patches of 4 as words, behind a word for the class."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.label = nn.Parameter(torch.zeros(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 10, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(
            16, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        words = self.patches(images).flatten(2).transpose(1, 2)
        label = self.label.expand(len(images), -1, -1)
        return self.head(self.layers(torch.cat([label, words], dim=1) + self.positions)[:, 0])


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
