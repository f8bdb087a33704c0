"""`pin_memory` with the device: an ordinary copy that is marked as pinned.

Page-locked memory makes copies to a GPU asynchronous, but XLA makes its own copy of any host memory that it reads. A
pinned tensor is a copy whose Storage is marked as pinned, so that `DataLoader(pin_memory=True)` and `x.pin_memory()`
work as they do with cuda.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def _pin_memory(self: Tensor, device: torch.device | None = None) -> Tensor:
    copy = self.clone()
    copy.untyped_storage().pinned = True  # type: ignore[attr-defined]
    return copy


def _is_pinned(self: Tensor, device: torch.device | None = None) -> bool:
    return getattr(self.untyped_storage(), "pinned", False)


def _pin_device_tensor(self: Tensor, device: torch.device | None = None) -> Tensor:
    raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")


def install(library: torch.library.Library) -> None:
    """Register the kernels of both operators."""
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("is_pinned", _is_pinned, "CPU")
    library.impl("_pin_memory", _pin_device_tensor, "PrivateUse1")
    library.impl("is_pinned", lambda self, device=None: False, "PrivateUse1")
