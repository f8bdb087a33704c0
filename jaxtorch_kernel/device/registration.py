"""Taking torch's spare backend and naming it `jax`."""

from __future__ import annotations

import sys

import torch
from torch.utils import backend_registration


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_id: int) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> object:
        return torch._C._autograd.DeviceType.PrivateUse1


def name_device() -> None:
    """Rename torch's `PrivateUse1` to `jax` and give it the module `torch.jax`.

    Raises:
        RuntimeError: another package holds the spare backend.
    """
    holder = torch._C._get_privateuse1_backend_name()
    if holder not in ("privateuseone", "jax"):
        raise RuntimeError(
            f"torch has one spare device for extensions, and {holder!r} has taken it "
            + ("(torchax claims it at import). " if holder == "jax" else ". ")
            + "jaxtorch and that package cannot share a process: import only one of them."
        )
    if hasattr(torch, "jax"):
        raise RuntimeError(
            "another package (torchax, most likely) has already registered a torch device named 'jax'. jaxtorch "
            "and that package cannot share a process: import only one of them."
        )
    from . import module

    backend_registration._setup_privateuseone_for_python_backend(
        "jax", module, _Hooks(), _Guard()
    )
    sys.modules["torch.jax"] = module
