"""The part of `torch.jax` that chooses the JAX device of new arrays, and reports its properties."""

from __future__ import annotations

import contextvars

import torch

from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.placement import Device
from .memory import mem_get_info
from .properties import DeviceProperties


class device:
    """Place new arrays on one of JAX's local devices: `with torch.jax.device(1): ...`

    Applies in this thread (more precisely, in this context of `contextvars`) until the end of the block. For torch,
    tensors remain on `jax:0`.

    Args:
        device: index, string or torch.device. None or a negative index changes nothing.
    """

    def __init__(self, device: Device):
        self._device = device
        self._tokens: list[contextvars.Token[int]] = []

    def __enter__(self) -> device:
        self._tokens.append(placement.set_index(placement.index_of(self._device)))
        return self

    def __exit__(self, *exc: object) -> None:
        placement.restore(self._tokens.pop())


class device_of(device):
    """Place new arrays on the JAX device that holds a tensor: `with torch.jax.device_of(x): ...`

    Args:
        obj: a tensor on one JAX device. Any other tensor (on the CPU, or sharded over devices) changes nothing.
    """

    def __init__(self, obj: torch.Tensor):
        super().__init__(_index_under(obj))


def _index_under(tensor: torch.Tensor) -> int | None:
    """The index of the one local JAX device that holds a tensor."""
    if tensor.device.type != "jax":
        return None
    holders = buffer_of(tensor).array.sharding.device_set
    local = placement.devices()
    (holder,) = holders if len(holders) == 1 else (None,)
    return local.index(holder) if holder in local else None


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether these are two of JAX's local devices: JAX copies arrays between any two of them.

    Raises:
        RuntimeError: one of them does not exist.
    """
    one, other = placement.index_of(device), placement.index_of(peer_device)
    for index in (one, other):
        placement.check_exists(index)
    return one != other


def set_device(device: Device) -> None:
    """Place this thread's new arrays on one of JAX's local devices from now on."""
    placement.set_index(placement.index_of(device))


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, platform, memory and location of the JAX device behind `jax:0`."""
    index = placement.index_of(device)
    return DeviceProperties.of(placement.jax_device(index), index, mem_get_info(index)[1])


def get_device_name(device: Device = None) -> str:
    """JAX's name of the device: "cpu", "TPU v5 lite", "NVIDIA H100 80GB HBM3", ..."""
    return str(placement.jax_device(device).device_kind)


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU, generation of a TPU as (n, 0), (0, 0) for any other device."""
    return get_device_properties(device).capability
