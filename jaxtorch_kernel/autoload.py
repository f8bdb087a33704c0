"""The hook that `import torch` runs: it names the device and does not import jax.

The entry point group `torch.backends` calls `register` at the end of `import torch`. It renames torch's
spare backend to `jax` and installs one fallback kernel for it. The first use of the device imports jax and the
operators (`operators/registration.py: install`) and extends torch's classes; a program that never creates a jax tensor
pays for none of this.

It must run this early because autograd counts the devices at its first backward pass. `make bench` measures its cost.
"""

from __future__ import annotations

from typing import Any

_registered = False
_libraries: list[Any] = []  # a torch.library.Library unregisters its kernels when it is collected


def register() -> None:
    """Register the device `jax` with torch. Calling it again does nothing.

    Raises:
        RuntimeError: another backend (torchax, say) has already taken torch's one spare backend, or autograd
            has run before (only possible where torch's autoload is off).
        ImportError: this torch lacks a private hook that the device needs.

    Example:
        >>> import torch  # the entry point has called `register` already
        >>> torch.zeros(2, device="jax").device
        device(type='jax', index=0)
    """
    global _registered
    if _registered:
        return
    import torch

    if _registered:  # `import torch` has just done it
        return
    from .device import registration

    registration.name_device()
    _registered = True
    library = torch.library.Library("_", "IMPL")
    library.fallback(_first_call, "PrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    registration.install(kernels)
    _libraries.extend([library, kernels])
    if not getattr(torch.__spec__, "_initializing", False):
        registration.check_engine()


def _first_call(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator without its own kernel on the device."""
    from .device.start import first_use

    return first_use()(op, *args, **kwargs)
