"""Entry points of torch's higher-order operators (control flow, `print`) and of `torch.utils.checkpoint`.

They are implemented above this layer, in modules that the first such call imports.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..base import torch_private as private
from ..programs import tracing

# The operator's name in `torch.ops.higher_order`: the module and the function that implement it.
_OPERATORS = {
    "cond": ("capture.control_flow", "cond"),
    "while_loop": ("capture.control_flow", "while_loop"),
    "scan": ("capture.control_flow", "scan_operator"),
    "map_impl": ("capture.control_flow", "map_operator"),
    "associative_scan": ("capture.control_flow", "associative_scan"),
    "print": ("debug", "print_operator"),
}


def install() -> None:
    """Give torch the device's kernels of these operators, once."""
    for operator, (module, function) in _OPERATORS.items():
        private.implement_higher_order(operator, _late(module, function))
    private.call_higher_order_directly()
    private.checkpoint_by(_late("capture.checkpoint", "checkpoint"), tracing.active)


def _late(module: str, name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        implementation = getattr(importlib.import_module(f"jaxtorch.{module}"), name)
        return implementation(*args, **kwargs)

    return kernel
