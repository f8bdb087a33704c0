"""Copies from host memory to device arrays and back. Neither side sees later writes of the other."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import torch
from jax.sharding import Sharding

from . import placement
from .arrays import in_host_memory, placed
from .buffer import Spec, spec_of, wrap_sized
from .dtypes import TABLE, to_numpy, to_torch
from .layout import memory_order

# torch exchanges only NumPy's built-in dtypes with NumPy. The others cross as integers of the same size.
_CARRIER = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
_FOREIGN = {row.torch for row in TABLE if row.numpy.isbuiltin != 1}


def put(array: np.ndarray, sharding: Sharding | None = None) -> tuple[jax.Array, Spec]:
    """Put a NumPy array that nothing else writes to on a sharding, by default that of the current device.

    64-bit dtypes are preserved. The result is concrete inside a trace too: known values are not part of the program.
    """
    result, sharding = placed(array, sharding)
    return result, spec_of(array.dtype, array.shape, sharding)


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> tuple[jax.Array, Spec]:
    """Zeros on the current device."""
    return put(in_host_memory(lambda: np.zeros(shape, dtype)))


def wait(array: jax.Array) -> None:
    """Wait for an array. In a forked process, which can compute nothing, this raises (`device/fork.py`).

    Raises:
        RuntimeError: the computation failed; the message is XLA's.
    """
    array.block_until_ready()


def host_values(array: jax.Array) -> np.ndarray:
    """The values of an array, read-only. Waits for them.

    NumPy would read the memory directly, which ends the process if XLA could not allocate it. Waiting first raises
    XLA's error instead.

    Raises:
        RuntimeError: other processes hold a part of the array.
    """
    if placement.any_mesh:
        placement.require_readable(array.sharding, f"{array.dtype}{list(array.shape)}")
    wait(array)
    return np.asarray(array)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous NumPy copy of a CPU tensor, with the same dtype."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dtype = to_numpy(tensor.dtype)
    if tensor.dtype in _FOREIGN:
        carrier = _CARRIER[tensor.dtype.itemsize][0]
        return np.array(tensor.contiguous().view(carrier).numpy(), order="C").view(dtype)
    return in_host_memory(lambda: np.array(tensor.numpy(), order="C"))


def to_host(array: np.ndarray, stride: Sequence[int] | None = None) -> torch.Tensor:
    """A CPU tensor with a copy of a NumPy array, contiguous or with dense strides.

    torch allocates it: memory from NumPy is not aligned for XLA, and could not be lent to a program without another
    copy (`operators/borrow.py`).
    """
    dtype = to_torch(array.dtype)
    carried = dtype
    if dtype in _FOREIGN:
        carried, carrier = _CARRIER[dtype.itemsize]
        array = array.view(carrier)
    if stride is None:
        result = torch.empty(array.shape, dtype=carried, device="cpu")
    else:
        result = torch.empty_strided(array.shape, stride, dtype=carried, device="cpu")
    result.numpy()[...] = array
    return result.view(dtype)


def to_device(tensor: torch.Tensor, in_order: bool = False) -> torch.Tensor:
    """A copy of a CPU tensor on the jax device, with the same dtype and shape.

    Args:
        in_order: keep the strides, if they are dense; by default it is contiguous.

    Raises:
        TypeError: XLA has no such dtype.
        RuntimeError: the layout is not strided (sparse, mkldnn, quantized), or NumPy allows fewer dimensions.
    """
    if tensor.dim() > 64:
        raise RuntimeError("only tensors with up to 64 dims are supported")
    if tensor.layout != torch.strided:
        raise RuntimeError(
            f"the jax device supports only dense (strided) tensors, not {tensor.layout}: "
            "call .to_dense() before moving."
        )
    size, stride = tuple(tensor.shape), tensor.stride()
    order = memory_order(size, stride) if in_order else None
    array, spec = put(as_numpy(tensor if order is None else tensor.permute(order)))
    return wrap_sized(array, spec, size, tensor.dtype, None if order is None else stride)


def is_traced(array: object) -> bool:
    """Whether the array is a tracer."""
    return isinstance(array, jax.core.Tracer)


def has_failed(array: jax.Array) -> bool:
    """Whether the computation of an array is known to have failed. Never waits."""
    if is_traced(array) or array.is_deleted() or not array.is_ready():  # type: ignore[attr-defined]  # of `ArrayImpl`
        return False
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError:
        return True
    return False
