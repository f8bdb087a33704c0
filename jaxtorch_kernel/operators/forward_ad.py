"""Operators that forward-mode differentiation requires of a device: zero tangents, alone or like another tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..dispatch.registry import kernel
from ..storage.buffer import buffer_of
from ..storage.layout import contiguous_strides
from .factories import empty


@kernel("_efficientzerotensor")
def _efficientzerotensor(size: Sequence[int], **options: object) -> torch.Tensor:
    """An ordinary tensor of zeros: XLA removes products with a constant zero."""
    return empty(size, **options)


@kernel("_has_same_storage_numel")
def _has_same_storage_numel(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tangent has as much memory as its primal. torch's kernel compares Storages; some report 0 bytes."""
    return _elements(self) == _elements(other)


def _elements(tensor: torch.Tensor) -> int:
    """The number of elements in a tensor's memory."""
    return int(buffer_of(tensor).spec.nbytes // tensor.element_size())


@kernel("_new_zeros_with_same_feature_meta")
def _new_zeros_with_same_feature_meta(
    self: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """A tangent for `other`: zeros with the same memory layout, after batch dimensions of `self`.

    A view of a tensor and the same view of its tangent must have the same layout. torch's kernel compares Storages,
    which may report 0 bytes.
    """
    batch = self.shape[:self_num_batch_dims]
    count = _elements(other)
    memory = torch.zeros(batch.numel() * count, dtype=other.dtype, device=other.device)
    stride = [s * count for s in contiguous_strides(batch)]
    return memory.as_strided(
        [*batch, *other.shape], [*stride, *other.stride()], other.storage_offset()
    )
