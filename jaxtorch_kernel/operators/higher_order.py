"""Entry points of torch's higher-order operators (control flow) and of `torch.utils.checkpoint`.

The implementations are in `capture/control_flow.py` and `capture/checkpoint.py`, which the first such call imports.
"""

from __future__ import annotations

import importlib

from ..base import torch_private as private
from ..dispatch.schema import Kernel
from ..programs import tracing

_OPERATORS = {
    "cond": "cond",
    "while_loop": "while_loop",
    "scan": "scan_operator",
    "map_impl": "map_operator",
    "associative_scan": "associative_scan",
}


def install() -> None:
    """Register the device's kernels of these operators."""
    for operator, name in _OPERATORS.items():
        private.implement_higher_order(operator, _late("control_flow", name))
    private.call_higher_order_directly()
    private.checkpoint_by(_late("checkpoint", "checkpoint"), tracing.active)


def _late(module: str, name: str) -> Kernel:
    """A function of `capture/`, which is imported at its first call."""

    def kernel(*args: object, **kwargs: object) -> object:
        imported = importlib.import_module(f"jaxtorch.capture.{module}")
        return getattr(imported, name)(*args, **kwargs)

    return kernel
