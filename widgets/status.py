"""The table of `%jax status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .page import Fact, Facts, Page
from .units import size
from .view import PageView

if TYPE_CHECKING:
    from jaxtorch.insight.status import DeviceMemory, Status


class StatusView(PageView):
    """Shows a `Status`. It has no live form, because it shows one moment and has no buttons."""

    kind = ""

    def __init__(self, status: Status):
        self.status = status

    def page(self) -> Page:
        status = self.status
        took = f" in {status.compile_seconds:.1f} s" if status.compiled else ""
        ran = [f"{name} × {count}" for name, count in status.fallbacks.items()]
        facts = {
            "Platform": [f"{status.platform} ({_pairs(status.versions, ' ')})"],
            "Devices": [_device(d) for d in status.devices],
            "Memory peak": [size(status.peak)],
            "Default device": [status.default_device],
            "Dtypes": [f"{status.default_dtype} by default; {status.dtype_policy}"],
            "Eager calls": [f"run {status.eager_calls}"],
            "Compiled programs": [f"{status.compiled}{took}"],
            "Ran on the CPU": ran or ["no operator"],
            "Options": [_pairs(status.options, "=")],
        }
        return Page("", sections=(Facts(tuple(Fact(n, tuple(ls)) for n, ls in facts.items())),))


def _pairs(values: Mapping[str, object], sign: str) -> str:
    return ", ".join(f"{name}{sign}{value}" for name, value in values.items())


def _device(device: DeviceMemory) -> str:
    limit = "" if device.limit is None else f" of {size(device.limit)}"
    return f"{device.name}: {size(device.allocated)}{limit} allocated"
