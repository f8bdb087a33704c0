"""Operators that forward-mode differentiation requires of a device: zero tangents, alone or like another tensor."""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch.registry import kernel
from ..storage.buffer import buffer_of
from ..storage.layout import contiguous_strides
from .factories import empty


@kernel("_efficientzerotensor")
def _efficientzerotensor(size: Any, **options: Any) -> torch.Tensor:
    """Zeros that are really there: XLA removes what is multiplied by a constant zero."""
    return empty(size, **options)


@kernel("_has_same_storage_numel")
def _has_same_storage_numel(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tangent has as much memory as its primal; torch's own asks Storages, some of which report 0 bytes."""
    return _elements(self) == _elements(other)


def _elements(tensor: torch.Tensor) -> int:
    """The number of elements in a tensor's memory."""
    return int(buffer_of(tensor).spec.nbytes // tensor.element_size())


@kernel("_new_zeros_with_same_feature_meta")
def _new_zeros_with_same_feature_meta(
    self: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """A tangent for `other`: zeros in as much memory, read as `other` reads its own, after batch dimensions of `self`.

    A view of a tensor and the same view of its tangent must have one layout. torch's own asks Storages here, too.
    """
    batch = self.shape[:self_num_batch_dims]
    count = _elements(other)
    memory = torch.zeros(batch.numel() * count, dtype=other.dtype, device=other.device)
    stride = [s * count for s in contiguous_strides(batch)]
    return memory.as_strided(
        [*batch, *other.shape], [*stride, *other.stride()], other.storage_offset()
    )
