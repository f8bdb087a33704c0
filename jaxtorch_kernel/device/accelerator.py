"""`torch.accelerator` for the device: what torch's C++ asks of a backend and a Python backend cannot answer there.

Device, stream and index work through the device guard. Synchronizing, memory and capability end in "Backend doesn't
support ..." for every backend written in Python, and torch looks each of these functions up by name in `torch._C` at
the call. Where the spare backend is registered it *is* the accelerator, so that no other device's answer is lost.
The answers are looked up in `torch.jax` at the call, too: `import torch` comes through here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import module


def _capability(index: int = 0) -> dict[str, Any]:
    from ..storage.dtypes import _PAIRS

    return {"supported_dtypes": set(_PAIRS)}


def _ask(name: str) -> Callable[..., Any]:
    return lambda index=0: getattr(module, name)()


def _stats(index: int = 0) -> dict[str, Any]:
    from .memory import nested_memory_stats

    return nested_memory_stats()


def _nothing(*args: Any) -> None:
    return None


_ANSWERS = {
    "_accelerator_synchronizeDevice": _ask("synchronize"),
    "_accelerator_getDeviceCapability": _capability,
    "_accelerator_isAllocatorInitialized": lambda: True,
    "_accelerator_emptyCache": _ask("empty_cache"),
    "_accelerator_emptyHostCache": _nothing,
    "_accelerator_getDeviceStats": _stats,
    "_accelerator_resetAccumulatedStats": _nothing,
    "_accelerator_resetPeakStats": _ask("reset_peak_memory_stats"),
    "_accelerator_getMemoryInfo": _ask("mem_get_info"),
}


def install() -> None:
    """Answer for the device, under the names of `torch._C`."""
    for name, answer in _ANSWERS.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, answer)
