"""`torch.accelerator` for the device: the functions that a backend written in Python cannot provide through C++.

Device, stream and index work through the device guard. Synchronization, memory and capability raise "Backend doesn't
support ..." for every backend written in Python. torch looks up each of these functions by name in `torch._C` at each
call, so this module replaces them there. Once the spare backend is registered it *is* the accelerator, so no other
device's functions are lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..base import torch_private as private


def _capability(index: int = 0) -> dict[str, Any]:
    from ..storage.dtypes import DTYPES

    return {"supported_dtypes": set(DTYPES)}


def _ask(name: str) -> Callable[..., Any]:
    return lambda index=0: getattr(sys.modules["torch.jax"], name)()


def _stats(index: int = 0) -> dict[str, Any]:
    from .memory import memory_stats_as_nested_dict

    return memory_stats_as_nested_dict()


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
    """Replace these functions of `torch._C` by those of the device."""
    private.answer_for_accelerator(_ANSWERS)
