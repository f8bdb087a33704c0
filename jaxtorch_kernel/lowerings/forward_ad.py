"""What forward-mode differentiation asks of a device: zero tangents, alone and shaped like another tensor."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch

from ..dispatch.factories import empty
from ..dispatch.registry import kernel
from ..storage.buffer import buffer_of
from .registry import lower


@kernel("_efficientzerotensor")
def _efficientzerotensor(size: Any, **options: Any) -> torch.Tensor:
    """Zeros that are really there: XLA removes what is multiplied by a constant zero."""
    return empty(size, **options)


@kernel("_has_same_storage_numel")
def _has_same_storage_numel(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tangent has as much memory as its primal; torch's own asks Storages, some of which report 0 bytes."""
    sizes = [buffer_of(t).spec.nbytes // t.element_size() for t in (self, other)]
    return sizes[0] == sizes[1]


# torch's own goes by the Storage's size, which is 0 here for a result (`storage.buffer.wrap`).
@lower("_new_zeros_with_same_feature_meta")
def _new_zeros_with_same_feature_meta(self: Any, other: Any, self_num_batch_dims: int) -> Any:
    return jnp.zeros(self.shape[:self_num_batch_dims] + other.shape, other.dtype)
