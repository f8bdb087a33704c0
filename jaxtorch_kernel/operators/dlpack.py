"""Memory shared between torch, JAX and other libraries, by the dlpack protocol. Nothing here copies a tensor's data.

* `array_over`: a JAX array over the memory of a CPU or CUDA tensor.
* `tensor_over`: a CPU or CUDA tensor over the memory of a JAX array.
* `export`, `device_of`: what other libraries call on a tensor of the device. It passes its current array. Arrays never
  change: a later in-place operator gives the tensor a new array, and the receiver keeps the old one.
* `from_dlpack`: a tensor of the device from an array, or from anything else that other libraries export.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np
import torch
import torch.utils.dlpack
from jax.sharding import Sharding

from ..dispatch.read import contiguous_array
from ..programs import untraceable
from ..storage import transfer
from ..storage.buffer import buffer_of, spec_of, wrap_sized
from ..storage.dtypes import to_torch
from ..storage.placement import copied

Tensor = torch.Tensor

# torch's device type -> JAX's platform for the same memory
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}


class Device(Protocol):
    """The attributes of a JAX device that are used here; JAX's stubs lack its class."""

    platform: str
    local_hardware_id: int


def single_device(sharding: Sharding) -> Device | None:
    """The device of a sharding; None if there are several."""
    devices: set[Any] = sharding.device_set
    return next(iter(devices)) if len(devices) == 1 else None


def platform_of(device: torch.device) -> str | None:
    """JAX's platform for the memory of a torch device; None if JAX cannot share it."""
    return _PLATFORMS.get(device.type)


def shares_memory(sharding: Sharding, device: torch.device) -> bool:
    """Whether arrays of a sharding are in the memory of a torch device, in one piece."""
    where = single_device(sharding)
    return where is not None and where.platform == platform_of(device)


def array_over(tensor: Tensor) -> jax.Array:
    """A JAX array over the memory of a CPU or CUDA tensor. If it is not aligned for XLA, JAX copies it."""
    with jax.enable_x64(True):
        return jax.dlpack.from_dlpack(tensor)


def tensor_over(array: jax.Array) -> Tensor:
    """A CPU or CUDA tensor over the memory of a JAX array. Waits for the array's values."""
    # torch reads the memory directly, which ends the process if XLA could not allocate it.
    transfer.wait(array)  # by its module: a forked process replaces it
    return torch.utils.dlpack.from_dlpack(array)


def export(tensor: Tensor, **options: Any) -> object:
    """`Tensor.__dlpack__` of the device.

    Raises:
        BufferError: the tensor requires grad or is lazily conjugated, as for every torch tensor.
    """
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    array = contiguous_array(tensor)
    untraceable.forbid(array, "exported by dlpack")
    if next(iter(array.devices())).platform == "cpu":
        transfer.wait(array)  # as in `tensor_over`
    if options.get("stream") == -1:  # torch's value for "no synchronization"; JAX's is None
        options["stream"] = None
    return array.reshape(tensor.shape).__dlpack__(**options)


def device_of(tensor: Tensor) -> tuple[int, int]:
    """`Tensor.__dlpack_device__` of the device: where the array physically is."""
    array: Any = buffer_of(tensor).array
    kind, index = array.__dlpack_device__()
    return kind, index


def from_dlpack(source: Any) -> Tensor:
    """A tensor of the device over a `jax.Array` without a copy, or over a copy of any other source."""
    if not isinstance(source, jax.Array):
        return transfer.to_device(torch.utils.dlpack.from_dlpack(source).cpu())
    array = row_major(source)
    dtype = np.dtype(array.dtype)
    spec = spec_of(dtype, tuple(array.shape), array.sharding)
    return wrap_sized(array, spec, array.shape, to_torch(dtype))


def row_major(array: jax.Array) -> jax.Array:
    """The array with its elements in row-major order, as the device's programs require.

    An array over another library's memory may have another order, which is its layout in JAX.
    """
    layout = array.format.layout  # type: ignore[attr-defined]  # not in JAX's stubs
    if layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim)):
        return array
    return copied(array)
