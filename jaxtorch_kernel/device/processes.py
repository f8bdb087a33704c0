"""Jax tensors in other processes: `torch.multiprocessing` passes them by value.

Unlike cuda memory, the device's memory cannot be shared with another process. A queue, a spawned worker's dataset and
its results get a copy, which the receiver moves to its own device. The two tensors are separate.
"""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions


def _rebuild(cls: type, saved: bytes, requires_grad: bool) -> torch.Tensor:
    tensor = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True).to("jax")
    if cls is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "jax":
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        return reductions.reduce_tensor(tensor)  # torch's error
    # By value: a CPU tensor in shared memory is lost if its sender ends before the receiver has opened it.
    saved = io.BytesIO()
    torch.save(tensor.detach().cpu(), saved)
    return _rebuild, (type(tensor), saved.getvalue(), tensor.requires_grad)


def install() -> None:
    """Register with the pickler of `torch.multiprocessing` and `DataLoader`."""
    for cls in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(cls, _reduce)
