"""The hook that `import torch` runs: it names the device and imports no jax.

The entry point group `torch.backends` calls `register` at the end of `import torch`. It renames torch's spare backend
to `jax`, makes `torch.Generator` accept the device (`device/generators.py`), and installs one fallback kernel. The
first use of the device extends torch's classes (`device/extensions.py`), imports jax and registers the operators
(`operators/registration.py: install`). A program that never uses the device pays for none of this.

`register` must run this early because autograd counts the devices at its first backward pass. `make bench` measures its
cost. If torch has an accelerator of its own (cuda, mps), a named spare backend would replace it as
`torch.accelerator`. On such a machine only `import jaxtorch` names the device. This may happen after a backward pass:
autograd has counted at least one device then, which is enough for `jax:0`.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

_registered = False
_libraries: list[Any] = []  # a torch.library.Library unregisters its kernels when it is collected


def register() -> None:
    """Register the device `jax` with torch. Calling it again does nothing.

    During `import torch` it does nothing if torch has an accelerator of its own, and it warns instead of raising an
    error.

    Raises:
        RuntimeError: another package (torchax, say) has already taken torch's one spare backend, or a backward pass
            has run before (possible only if torch's autoload is off).
        ImportError: this torch lacks a private hook that the device needs.

    Example:
        >>> import torch  # the entry point has called `register` already
        >>> torch.zeros(2, device="jax").device
        device(type='jax', index=0)
    """
    if _registered:
        return
    loaded = "torch" in sys.modules
    import torch

    package = __name__.partition(".")[0]
    if _registered or (_is_importing(torch) and _is_importing(sys.modules[package])):
        return  # in the second case `import jaxtorch` imports torch, and calls this next
    if not _is_importing(torch):
        _name_device()
        if loaded:  # otherwise no backward pass can have run
            from .device.registration import check_engine

            check_engine()
    elif not _has_accelerator():
        try:
            _name_device()
        except (ImportError, RuntimeError) as error:
            warnings.warn(f"torch has no device `jax`: {error}", RuntimeWarning, stacklevel=2)
            _forget()
    else:
        _forget()


def _has_accelerator() -> bool:
    """Whether torch finds an accelerator of its own on this machine.

    `torch.cuda` asks the driver's management library. `torch.accelerator` would initialize CUDA's runtime, and a forked
    process could not use CUDA afterwards.
    """
    import torch

    if torch.version.cuda or torch.version.hip:
        return torch.cuda.device_count() > 0
    return torch.accelerator.device_count() > 0


def _is_importing(module: Any) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _name_device() -> None:
    global _registered
    import torch

    from .device import registration

    registration.name_device()
    _registered = True
    library = torch.library.Library("_", "IMPL")
    library.fallback(_first_call, "PrivateUse1")
    _libraries.append(library)


def _forget() -> None:
    """Remove this package from `sys.modules`, so that the program's own `import jaxtorch` runs it."""
    package = __name__.partition(".")[0]
    for name in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
        del sys.modules[name]


def _first_call(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The fallback kernel of the device: start the device, then run the operator."""
    from .device.start import first_use

    return first_use()(op, *args, **kwargs)
