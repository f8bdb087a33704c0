"""The state of the device at one moment, as plain data. `%jax status` shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DeviceMemory:
    """One JAX device behind torch's `jax` device.

    Attributes:
        allocated: the bytes of the live arrays on it: those of tensors, and those that the program made with JAX.
        limit: bytes that XLA may use; None without a limit (on the CPU).
    """

    name: str
    allocated: int
    limit: int | None


@dataclass(frozen=True)
class Status:
    """The state that `%jax status` shows.

    Attributes:
        peak: the most bytes that tensors have held, over all devices.
        default_device: the device of tensors created without one.
        default_dtype: the dtype of floating-point tensors created without one.
        dtype_policy: which torch dtypes run unchanged.
        eager_calls: where their host code runs: in C++, or in Python and why.
        compiled: number of XLA programs compiled so far, in `compile_seconds` total.
        fallbacks: operator -> how often it ran on the CPU because the device does not implement it.
        options: the options of `jaxtorch.config` in effect.
    """

    platform: str
    devices: tuple[DeviceMemory, ...]
    peak: int
    default_device: str
    default_dtype: str
    dtype_policy: str
    eager_calls: str
    compiled: int
    compile_seconds: float
    fallbacks: dict[str, int]
    options: dict[str, Any]
    versions: dict[str, str]


def read_status() -> Status:
    """The current state. Starts JAX if it is not running yet.

    Example:
        >>> from jaxtorch.insight.status import read_status
        >>> status = read_status()
        >>> len(status.devices) >= 1
        True
    """
    import jax

    from ..base.options import config
    from ..base.version import __version__
    from ..device import memory
    from ..native import loading
    from ..programs import stats
    from ..storage import placement

    devices = placement.devices()
    return Status(
        platform=devices[0].platform,
        devices=tuple(_memory(i, device) for i, device in enumerate(devices)),
        peak=memory.max_memory_allocated(),
        default_device=str(torch.get_default_device()),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        dtype_policy="int64 and float64 stay as they are",
        eager_calls=loading.state(),
        compiled=stats.compile_count(),
        compile_seconds=sum(
            program.trace + program.lowering + program.xla for program in stats.compiled
        ),
        fallbacks=stats.fallbacks(),
        options=asdict(config.options()),
        versions={
            "jaxtorch": __version__,
            "torch": torch.__version__,
            "jax": jax.__version__,
        },
    )


def _memory(index: int, device: Any) -> DeviceMemory:
    from ..device import memory

    limit = (device.memory_stats() or {}).get("bytes_limit")
    return DeviceMemory(str(device), memory.memory_allocated(index), limit)
