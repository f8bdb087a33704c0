"""A tensor's values as one array in logical order, whatever its strides."""

from __future__ import annotations

from typing import Any

import torch

from ..lowerings.registry import Lowering
from ..storage.buffer import buffer_of
from ..storage.layout import plan


def _identity(x: Any) -> Any:
    return x


_read: Any = None


def contiguous_array(tensor: torch.Tensor) -> Any:
    """The `jax.Array` (or tracer) of a tensor of the device, of the tensor's shape and dtype.

    The buffer's own array where the tensor is all of it, else a compiled read. Do not donate it.
    """
    global _read
    buffer = buffer_of(tensor)
    if plan(buffer.spec, tensor.dtype, tuple(tensor.shape), tensor.stride()) is None:
        return buffer.array
    if _read is None:
        from .operation import Operation

        _read = Operation(None, Lowering(_identity), "read")
    with torch.no_grad():
        return buffer_of(_read(tensor)).array
