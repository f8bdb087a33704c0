"""`_foreach_` operators that take tensors on other devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..base.torch_private import overload
from ..dispatch.registry import kernel
from .choice import operation_of

Tensor = torch.Tensor


@kernel("_foreach_copy_")
def foreach_copy_(
    self: list[torch.Tensor], src: list[torch.Tensor], non_blocking: bool = False
) -> None:
    """Copies from other devices go one by one."""
    if all(s.device.type == "jax" for s in src):
        operation_of(torch.ops.aten._foreach_copy_.default)(self, src, non_blocking)
        return
    for target, source in zip(self, src, strict=True):
        target.copy_(source, non_blocking)


def _with_numbers(op: Any) -> Callable[..., Any]:
    # These overloads take their numbers as a one-dimensional CPU tensor.
    def foreach(self: Any, tensor1: Any, tensor2: Any, scalars: torch.Tensor) -> Any:
        return op(self, tensor1, tensor2, scalars.tolist())

    return foreach


for _name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_"):
    if (_op := overload(f"_foreach_{_name}.ScalarList")) is not None:
        kernel(f"_foreach_{_name}.Tensor")(_with_numbers(_op))
