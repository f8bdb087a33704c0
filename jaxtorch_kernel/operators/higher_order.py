"""Entry points of torch's higher-order operators (control flow, `print`) and of `torch.utils.checkpoint`.

They are implemented above this layer, in modules that the first such call imports.
"""

from __future__ import annotations

import importlib

from ..base import torch_changes
from ..dispatch.schema import Kernel
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
    """Register the device's kernels of these operators."""
    for operator, (module, function) in _OPERATORS.items():
        torch_changes.implement_higher_order(operator, _late(module, function))
    in_transforms = _late("capture.control_flow", "cond_in_transforms")
    torch_changes.implement_in_transforms("cond", in_transforms)
    torch_changes.call_higher_order_directly()
    torch_changes.checkpoint_by(_late("capture.checkpoint", "checkpoint"), tracing.active)


def _late(module: str, name: str) -> Kernel:
    """A function of a layer above, whose module is imported at its first call."""

    def kernel(*args: object, **kwargs: object) -> object:
        imported = importlib.import_module(f"jaxtorch.{module}")
        return getattr(imported, name)(*args, **kwargs)

    return kernel
