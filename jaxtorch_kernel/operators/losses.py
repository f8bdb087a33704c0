"""Losses whose composite in torch has results of unknown sizes."""

from __future__ import annotations

import torch

from ..dispatch.registry import kernel

Tensor = torch.Tensor
aten = torch.ops.aten
_MEAN, _SUM = 1, 2


@kernel("cross_entropy_loss")
def cross_entropy_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The composite, without its `masked_select` of the targets that count: no trace can have it."""
    op = aten.cross_entropy_loss.default
    has_indices = self.shape != target.shape
    if weight is None or not label_smoothing or reduction != _MEAN or not has_indices:
        return op.decompose(self, target, weight, reduction, ignore_index, label_smoothing)
    total = op.decompose(self, target, weight, _SUM, ignore_index, label_smoothing)
    indices = target.flatten()
    ignored = indices == ignore_index
    weights = weight.gather(0, indices.masked_fill(ignored, 0)).masked_fill(ignored, 0)
    return total / weights.sum()
