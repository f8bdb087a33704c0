"""`pin_memory` with the device: accepted and recorded, but an ordinary copy.

Page-locked memory makes copies to a GPU asynchronous, but XLA reads any host memory and makes its own copy of it. To
let `DataLoader(pin_memory=True)` and `x.pin_memory()` work as they do with cuda, a pinned tensor is a copy whose
Storage is marked as pinned. The methods of `torch.Tensor` do this, and the kernels of the CPU stay torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import has_torch_function_unary

from ..storage.placement import Device

Tensor = torch.Tensor
_pin_memory = Tensor.pin_memory
_is_pinned = Tensor.is_pinned


def pin_memory(self: Tensor, device: Device = None) -> Tensor:
    if has_torch_function_unary(self) or not self.is_cpu or self.layout != torch.strided:
        return _pin_memory(self, device)
    if is_pinned(self):
        return self
    copy = self.clone()
    copy.untyped_storage().pinned = True  # type: ignore[attr-defined]
    return copy


def is_pinned(self: Tensor, device: Device = None) -> bool:
    if has_torch_function_unary(self) or not self.is_cpu or self.layout != torch.strided:
        return _is_pinned(self, device)
    return getattr(self.untyped_storage(), "pinned", False)


def _pin_device_tensor(self: Tensor, device: Device = None) -> Tensor:
    raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")


_libraries: list[Any] = []


def install() -> None:
    """Replace the methods, and register kernels of the device for both operators."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    library.impl("_pin_memory", _pin_device_tensor, "PrivateUse1")
    library.impl("is_pinned", lambda self, device=None: False, "PrivateUse1")
    for method, original in ((pin_memory, _pin_memory), (is_pinned, _is_pinned)):
        method.__doc__ = original.__doc__
        method.__qualname__ = f"Tensor.{method.__name__}"
        setattr(Tensor, method.__name__, method)
