"""`torch.jax`: the counterpart of `torch.cuda`.

torch sees one device, `jax:0` (docs/reference/torch_jax.md says what that means). `import torch` imports this module,
so it imports little itself: most names are loaded from their own modules on first access, and jax is imported by the
functions that need it. A program that reads one of these names is about to use the device, so torch is extended then
(`extensions.py`). The functions that `torch.manual_seed` calls on every backend are an exception.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

from .seeds import manual_seed_all

_ELSEWHERE = {
    ".memory": """
        device_memory_used empty_cache ipc_collect max_memory_allocated max_memory_reserved mem_get_info
        memory_allocated memory_reserved memory_snapshot memory_stats memory_stats_as_nested_dict memory_summary
        reset_accumulated_memory_stats reset_max_memory_allocated reset_peak_memory_stats
    """,
    ".placing": """
        can_device_access_peer device device_of get_device_capability get_device_name get_device_properties
        set_device
    """,
    ".properties": "DeviceProperties",
    ".random": """
        get_rng_state get_rng_state_all initial_seed manual_seed seed seed_all set_rng_state set_rng_state_all
    """,
    ".streams": "Event Stream StreamContext current_stream default_stream set_stream stream synchronize",
}


class _Submodule(ModuleType):
    """A submodule of `torch.jax`, loaded when one of its names is first used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _extend_torch()
        return getattr(
            importlib.import_module(f".{self.__name__.rpartition('.')[2]}", __package__), name
        )


SUBMODULES = {
    "amp": _Submodule("torch.jax.amp", "The names of `torch.cuda.amp`, for the device."),
    "memory": _Submodule("torch.jax.memory", "Memory figures of `torch.jax`."),
    "random": _Submodule("torch.jax.random", "Seeds and random states of `torch.jax`."),
    "streams": _Submodule("torch.jax.streams", "Streams and events of `torch.jax`."),
}
globals().update(SUBMODULES)

OutOfMemoryError = torch.OutOfMemoryError  # what the device raises

_HOME = {name: home for home, names in _ELSEWHERE.items() for name in names.split()}

__all__ = [
    "OutOfMemoryError",
    "current_device",
    "device_count",
    "from_dlpack",
    "get_amp_supported_dtype",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed_all",
    *SUBMODULES,
    *_HOME,
]


def __getattr__(name: str) -> object:
    if name == "_initialized":  # `torch.utils.checkpoint` reads it before it stores random states
        return is_initialized()
    if name not in _HOME:
        raise AttributeError(f"module 'torch.jax' has no attribute {name!r}")
    _extend_torch()
    value = globals()[name] = getattr(importlib.import_module(_HOME[name], __package__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


def _extend_torch() -> None:
    from .extensions import extend_torch

    extend_torch()


def is_available() -> bool:
    """Whether the device can be used in this process."""
    _extend_torch()  # `torch.accelerator.is_available` calls this, and programs then call its other functions
    return not _is_in_bad_fork()


def is_initialized() -> bool:
    """Whether jax has been started for the device."""
    from . import fork

    return fork.started


def init() -> None:
    """Start jax now rather than at the first use of the device."""
    from .start import first_use

    first_use()


_lazy_init = init


def device_count() -> int:
    """1, because torch sees one jax device, however many JAX devices there are."""
    _extend_torch()
    return 1


def current_device() -> int:
    """0, the index of torch's one jax device. `get_device_name()` names the JAX device in use."""
    _extend_torch()
    return 0


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True, because XLA supports bfloat16 on every platform."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast('jax', dtype=...)` accepts."""
    return [torch.bfloat16, torch.float16, torch.float32]


def from_dlpack(array: Any) -> torch.Tensor:
    """A tensor of the jax device over a `jax.Array` (no copy), or a copy of any other dlpack producer's data."""
    from ..operators.dlpack import from_dlpack

    init()  # no operator runs here that would start the device
    return from_dlpack(array)


def _is_in_bad_fork() -> bool:
    from . import fork

    return fork.forked
