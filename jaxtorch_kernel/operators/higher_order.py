"""Entry points of torch's higher-order operators (control flow) and of `torch.utils.checkpoint`.

They are implemented in `capture/control_flow.py` and `capture/checkpoint.py`, which the first such call imports.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..base import torch_private as private
from ..programs import tracing

_OPERATORS = {
    "cond": "cond",
    "while_loop": "while_loop",
    "scan": "scan_operator",
    "map_impl": "map_operator",
    "associative_scan": "associative_scan",
}


def install() -> None:
    """Give torch the device's kernels of these operators, once."""
    for operator, name in _OPERATORS.items():
        private.implement_higher_order(operator, _late("control_flow", name))
    private.call_higher_order_directly()
    private.checkpoint_by(_late("checkpoint", "checkpoint"), tracing.active)


def _late(module: str, name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        found = importlib.import_module(f"jaxtorch.capture.{module}")
        return getattr(found, name)(*args, **kwargs)

    return kernel
