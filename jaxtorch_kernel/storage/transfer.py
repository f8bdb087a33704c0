"""Transfers from host memory to device arrays and back. Always copies: neither side sees later writes of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch

from .arrays import in_host_memory, placed
from .buffer import Spec, spec_of, wrap_sized
from .dtypes import TABLE, to_numpy, to_torch

# torch exchanges only NumPy's built-in dtypes with NumPy. The others cross as integers of the same size.
_CARRIER = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
_FOREIGN = {row.torch for row in TABLE if row.numpy.isbuiltin != 1}


def put(array: np.ndarray, where: Any = None) -> tuple[Any, Spec]:
    """A NumPy array without other writers, placed as `where` or on the current device. 64-bit dtypes are preserved.

    It is a concrete value inside a trace too: known values are not part of the program.
    """
    result, sharding = placed(array, where)
    return result, spec_of(array.dtype, array.shape, sharding)


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, Spec]:
    """Zeros on the current device."""
    return put(in_host_memory(lambda: np.zeros(shape, dtype)))


def wait(array: Any) -> None:
    """Wait for a `jax.Array`. A forked process, where nothing is ever computed, refuses here (`device/fork.py`).

    Raises:
        RuntimeError: what computes the array failed; the message is XLA's.
    """
    array.block_until_ready()


def host_values(array: Any) -> np.ndarray:
    """The values of a `jax.Array`, read-only. Waits for them.

    NumPy looks at the memory itself, which ends the process where XLA got none; waiting raises XLA's error.
    """
    wait(array)
    return np.asarray(array)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous NumPy copy of a CPU tensor, with torch's exact dtype."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dtype = to_numpy(tensor.dtype)
    if tensor.dtype in _FOREIGN:
        carrier = _CARRIER[tensor.dtype.itemsize][0]
        return np.array(tensor.contiguous().view(carrier).numpy(), order="C").view(dtype)
    return in_host_memory(lambda: np.array(tensor.numpy(), order="C"))


def to_host(array: np.ndarray, stride: Sequence[int] | None = None) -> torch.Tensor:
    """A CPU tensor with a copy of a NumPy array, contiguous or with dense strides.

    In torch's own memory: what NumPy allocates is not aligned as XLA wants it, and could not be lent to a program
    without another copy (`operators/borrow.py`).
    """
    dtype = to_torch(array.dtype)
    through = dtype
    if dtype in _FOREIGN:
        through, carrier = _CARRIER[dtype.itemsize]
        array = array.view(carrier)
    if stride is None:
        result = torch.empty(array.shape, dtype=through, device="cpu")
    else:
        result = torch.empty_strided(array.shape, stride, dtype=through, device="cpu")
    result.numpy()[...] = array
    return result.view(dtype)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a CPU tensor on the jax device; dtype and shape stay.

    Raises:
        TypeError: XLA has no such dtype.
        RuntimeError: the layout is not strided (sparse, mkldnn, quantized), or NumPy has not so many dimensions.
    """
    if tensor.dim() > 64:
        raise RuntimeError("only tensors with up to 64 dims are supported")
    if tensor.layout != torch.strided:
        raise RuntimeError(
            f"the jax device supports only dense (strided) tensors, not {tensor.layout}: "
            "call .to_dense() before moving."
        )
    array, spec = put(as_numpy(tensor))
    return wrap_sized(array, spec, tensor.shape, tensor.dtype)


def is_traced(array: Any) -> bool:
    """Whether it represents a value inside a trace."""
    return isinstance(array, jax.core.Tracer)


def has_failed(array: Any) -> bool:
    """Whether it is known that what computes an array failed. Never waits."""
    if is_traced(array) or array.is_deleted() or not array.is_ready():
        return False
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError:
        return True
    return False
