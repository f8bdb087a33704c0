"""The changes to torch's functions and classes that a program gets when it uses `torch.jax`.

`import torch` only names the device (`registration.py`), so none of these changes affects a program that never uses the
device. The functions of `torch.jax` call `extend_torch`, which makes the changes of this module and imports no jax. All
other changes are made at the first use of the device (`start.py`).
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..base import torch_private as private
from . import accelerator, pinning

_extended = False
_new_of_torch: Any = private.StorageBase.__new__


def extend_torch() -> None:
    """Make the changes, once."""
    global _extended
    if _extended:
        return
    _extended = True
    accelerator.install()
    pinning.install()
    torch.UntypedStorage.__new__ = _new_storage  # type: ignore[method-assign]
    _export_through_capsules()


def _start() -> None:
    sys.modules["torch.jax"].init()


def _new_storage(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Start the device, because `torch.UntypedStorage(n, device="jax")` (in `torch.load`) may be its first use."""
    if device is not None:
        kwargs["device"] = device
        if torch.device(device).type == "jax":
            _start()  # replaces this `__new__` (`operators/storages.py`)
            return torch.UntypedStorage(*args, **kwargs)
    return _new_of_torch(cls, *args, **kwargs)


def _to_dlpack(tensor: torch.Tensor) -> Any:
    """A capsule of a tensor's memory, for the other library's `from_dlpack`.

    torch's own function reads the data at an address, but a tensor of the device has no data there.
    """
    return tensor.__dlpack__() if tensor.device.type == "jax" else private.to_capsule(tensor)


def _export_through_capsules() -> None:
    """Replace torch's `to_dlpack`, also in modules that have imported it by name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get("to_dlpack") is private.to_capsule:
            names["to_dlpack"] = _to_dlpack
