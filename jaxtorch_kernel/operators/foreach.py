"""`_foreach_` operators with arguments on other devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..base.torch_private import OpOverload, overload
from ..dispatch.registry import kernel
from .choice import operation_of

Tensor = torch.Tensor


@kernel("_foreach_copy_")
def foreach_copy_(self: list[Tensor], src: list[Tensor], non_blocking: bool = False) -> None:
    """Copies from other devices are made one by one."""
    if all(s.device.type == "jax" for s in src):
        operation_of(torch.ops.aten._foreach_copy_.default)(self, src, non_blocking)
        return
    for target, source in zip(self, src, strict=True):
        target.copy_(source, non_blocking)


Tensors = Sequence[Tensor]


def _with_numbers(op: OpOverload) -> Callable[..., Tensors | None]:
    """The overload that takes its numbers as a one-dimensional CPU tensor."""

    def foreach(
        self: Tensors, tensor1: Tensors, tensor2: Tensors, scalars: Tensor
    ) -> Tensors | None:
        return op(self, tensor1, tensor2, scalars.tolist())

    return foreach


for _name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_"):
    if (_op := overload(f"_foreach_{_name}.ScalarList")) is not None:
        kernel(f"_foreach_{_name}.Tensor")(_with_numbers(_op))
