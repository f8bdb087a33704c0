"""The registration of the device: torch's spare backend is renamed to `jax`."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils import backend_registration

from ..base import torch_naming as private


class _Hooks(private.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, device_id: int) -> bool:
        return True


def name_device() -> None:
    """Rename torch's `PrivateUse1` to `jax` and give it the module `torch.jax`.

    Raises:
        RuntimeError: another package holds the spare backend.
    """
    holder = private.backend_name()
    if holder not in ("privateuseone", "jax"):
        raise RuntimeError(
            f"torch has a single spare device for extensions, and {holder!r} has already taken it "
            + ("(torchax claims it at import). " if holder == "jax" else ". ")
            + "jaxtorch and that package cannot share a process: import only one of them."
        )
    if hasattr(torch, "jax"):
        raise RuntimeError(
            "another package (torchax, most likely) has already registered a torch device named 'jax'. jaxtorch "
            "and that package cannot share a process: import only one of them."
        )
    from . import generators, guard, module

    private.setup_backend("jax", module, _Hooks(), guard.Guard())
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )
    for lazy in (torch.nn.parameter.UninitializedParameter, torch.nn.parameter.UninitializedBuffer):
        lazy.jax = _move_lazy  # type: ignore[union-attr]  # overrides `Tensor.jax`, which torch generates when it runs
    sys.modules["torch.jax"] = module
    sys.modules.update({m.__name__: m for m in module.SUBMODULES.values()})
    generators.install()


def _move_lazy(
    self: torch.Tensor, device: int | str | torch.device | None = None, **options: Any
) -> torch.Tensor:
    """`.jax()` of a parameter of a lazy module, where torch allows `to` and `cuda`, but not the method it generates."""
    place = (
        torch.device("jax", device) if isinstance(device, int) else torch.device(device or "jax")
    )
    if place.type != "jax":
        raise RuntimeError("Invalid device, must be jax device")  # as torch's method
    return self.to(place, **options)


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return private.create_empty_tensor((), torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:
        return None


def check_engine() -> None:
    """Make sure that autograd can run on the device. Needed if the device is registered after torch's import.

    Autograd counts the devices at its first backward pass only. The probe calls no operator, so it does not start jax.

    Raises:
        RuntimeError: a backward pass ran before the device was registered.
    """
    out = _Probe.apply(torch.zeros((), device="cpu", requires_grad=True))
    try:
        out.backward(private.create_empty_tensor((), torch.float32))
    except RuntimeError as error:
        raise RuntimeError(
            "jaxtorch was imported after a backward pass had run, and torch's autograd no longer accepts a new device. "
            "Restart Python and import jaxtorch first (or leave TORCH_DEVICE_BACKEND_AUTOLOAD enabled: `import torch` "
            "then loads it)."
        ) from error
