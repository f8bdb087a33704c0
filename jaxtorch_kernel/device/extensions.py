"""What the device changes in torch itself. Nothing of it happens at `import torch`.

`import torch` only names the device (`registration.py`): a program that never uses it finds torch as it is without
this package. The changes here follow when a program asks for `torch.jax`, whose functions call `extend_torch`. They
import no jax. The rest comes with the first tensor (`start.py`).
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
    """`torch.UntypedStorage(n, device="jax")`, which `torch.load` calls, may be the first use of the device."""
    if device is not None:
        kwargs["device"] = device
        if torch.device(device).type == "jax":
            _start()  # puts another `__new__` into this one's place
            return torch.UntypedStorage(*args, **kwargs)
    return _new_of_torch(cls, *args, **kwargs)


def _to_dlpack(tensor: torch.Tensor) -> Any:
    """A capsule of a tensor's memory, for the other library's `from_dlpack`.

    torch's own looks for the data at an address, and a tensor of the device has none.
    """
    return tensor.__dlpack__() if tensor.device.type == "jax" else private.to_capsule(tensor)


def _export_through_capsules() -> None:
    """Replace torch's `to_dlpack`, also where a program has imported it by name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names.get("to_dlpack") is private.to_capsule:
            names["to_dlpack"] = _to_dlpack
