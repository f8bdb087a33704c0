"""`torch.jax`: the twin of `torch.cuda`.

torch sees one device, `jax:0`. Where new arrays physically go is chosen with `torch.jax.device(i)` and
`torch.jax.set_device(i)`, by the index of one of JAX's local devices; `device_count` and `current_device` speak of
torch's one device. Importing this module imports no jax: a function that needs it does.
"""

from __future__ import annotations

import contextvars
from typing import Any

import torch

from ..storage import placement
from .memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
)
from .properties import DeviceProperties
from .rng import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "from_dlpack",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def is_available() -> bool:
    """Whether the device can be used in this process."""
    return not _is_in_bad_fork()


def is_initialized() -> bool:
    """Whether jax has been started for the device."""
    from . import fork

    return fork.started


def init() -> None:
    """Start jax now rather than at the first use of the device."""
    from .registration import first_use

    first_use()


_lazy_init = init


def device_count() -> int:
    """1: torch sees one jax device, whatever lies behind it."""
    return 1


def current_device() -> int:
    """0, the index of torch's one jax device. `get_device_name()` tells which of JAX's devices is in use."""
    return 0


def _placement_index(device: Any = None) -> int:
    """The index among JAX's local devices that `device` (int, str, torch.device, None) means."""
    if device is None:
        return placement.index()
    if isinstance(device, int):
        return placement.index() if device < 0 else device
    device = torch.device(device)
    if device.type != "jax":
        raise ValueError(f"Expected a jax device, but got: {device}")
    return placement.index() if device.index is None else device.index


class device:
    """Place new arrays on one of JAX's local devices: `with torch.jax.device(1): ...`

    Holds in this thread (more exactly, in this context of `contextvars`) until the end of the block. Tensors stay
    `jax:0` for torch.

    Args:
        device: index, string or torch.device. None or a negative index changes nothing.
    """

    def __init__(self, device: Any):
        self._device = device
        self._tokens: list[contextvars.Token[int]] = []

    def __enter__(self) -> device:
        self._tokens.append(placement.set_index(_placement_index(self._device)))
        return self

    def __exit__(self, *exc: object) -> None:
        placement.restore(self._tokens.pop())


def set_device(device: Any) -> None:
    """Place this thread's new arrays on one of JAX's local devices from here on."""
    placement.set_index(_placement_index(device))


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name, platform, memory and place of the JAX device behind."""
    index = _placement_index(device)
    return DeviceProperties.of(placement.devices()[index], index, mem_get_info(index)[1])


def get_device_name(device: Any = None) -> str:
    """The name JAX gives the device: "cpu", "TPU v5 lite", "NVIDIA H100 80GB HBM3", ..."""
    return str(placement.devices()[_placement_index(device)].device_kind)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU, generation of a TPU as (n, 0), (0, 0) of anything else."""
    return get_device_properties(device).capability


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: XLA computes bfloat16 on every platform."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What `torch.autocast('jax', dtype=...)` takes."""
    return [torch.bfloat16, torch.float16, torch.float32]


def from_dlpack(array: Any) -> torch.Tensor:
    """A tensor of the jax device over a `jax.Array` (no copy), or a copy of any other dlpack producer's data."""
    from .dlpack import from_dlpack

    return from_dlpack(array)


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # `torch.utils.checkpoint` asks it before it keeps random states
        return is_initialized()
    raise AttributeError(f"module 'torch.jax' has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    from . import fork

    return fork.forked
