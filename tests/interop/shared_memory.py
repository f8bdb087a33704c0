"""Whose memory an array and a tensor have, and whether they hold the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import torch

from jaxtorch.base import torch_private as private
from jaxtorch.storage.dtypes import to_numpy

DEVICES = ["cpu", "jax"]


def pointer(array: jax.Array) -> int:
    return array.unsafe_buffer_pointer()


def address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def some(dtype: torch.dtype, *size: int) -> torch.Tensor:
    """Values that every dtype can hold."""
    if dtype == torch.float8_e8m0fnu:  # powers of two alone
        return torch.ones(size).to(dtype)
    values = torch.arange(int(np.prod(size))).reshape(size) % 2
    return values.to(dtype)


def same(array: jax.Array, tensor: torch.Tensor) -> bool:
    """Whether dtype, shape and values agree, bit by bit."""
    array = np.asarray(array)
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    bits = tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return (
        array.dtype == to_numpy(tensor.dtype)
        and array.shape == tuple(tensor.shape)
        and array.tobytes() == bits
    )


@contextmanager
def default_device(name: str) -> Iterator[None]:
    before = private.default_device()
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(before)
