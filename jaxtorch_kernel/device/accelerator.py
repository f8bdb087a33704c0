"""`torch.accelerator` for the device: the functions that a backend written in Python cannot provide through C++.

Device and stream work through the device guard. Its C++ accepts every index, and synchronization, memory and capability
raise "Backend doesn't support ..." for every backend written in Python. torch looks up each of these functions by name
in `torch._C` at each call, so this module replaces them there. Once the spare backend is registered it *is* the
accelerator, so no other device's functions are lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..base import torch_changes
from ..storage.checks import check_index


def _check(index: int) -> None:
    """Refuse an index that torch has no device for. A negative one means the current device."""
    if index > 0:
        check_index(torch.device("jax", index))


def _set_index(index: int) -> None:
    _check(index)


def _exchange_index(index: int) -> int:
    """Set the index and return the one before, which is the only one."""
    _check(index)
    return 0


def _capability(index: int = 0) -> dict[str, Any]:
    from ..storage.dtypes import DTYPES

    _check(index)
    return {"supported_dtypes": set(DTYPES)}


def _ask(name: str) -> Callable[..., object]:
    def ask(index: int = 0) -> object:
        _check(index)
        return getattr(sys.modules["torch.jax"], name)()

    return ask


def _stats(index: int = 0) -> dict[str, Any]:
    from .memory import memory_stats_as_nested_dict

    _check(index)
    return memory_stats_as_nested_dict()


def _nothing(*args: Any) -> None:
    return None


_ANSWERS = {
    "_accelerator_setDeviceIndex": _set_index,
    "_accelerator_exchangeDevice": _exchange_index,
    "_accelerator_maybeExchangeDevice": _exchange_index,
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
    torch_changes.answer_for_accelerator(_ANSWERS)
