"""The hook that `import torch` runs: it names the device, imports no jax, and changes nothing else of torch.

The entry point group `torch.backends` calls `register` at the end of `import torch`. It renames torch's
spare backend to `jax` and installs one fallback kernel for it. The first use of the device extends torch's classes
(`device/extensions.py`), imports jax and registers the operators (`operators/registration.py: install`); a program that
never uses it pays for none of this.

It must run this early because autograd counts the devices at its first backward pass. `make bench` measures its cost.
Where torch has an accelerator of its own (cuda, mps), a named spare backend would take its place as
`torch.accelerator`. There only `import jaxtorch` names the device; autograd has counted a device by then.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

_registered = False
_libraries: list[Any] = []  # a torch.library.Library unregisters its kernels when it is collected


def register() -> None:
    """Register the device `jax` with torch. Calling it again does nothing.

    Called by `import torch` itself, it leaves torch as it is where torch has an accelerator of its own, and warns
    where it would raise an error.

    Raises:
        RuntimeError: another backend (torchax, say) has already taken torch's one spare backend, or autograd
            has run before (only possible where torch's autoload is off).
        ImportError: this torch lacks a private hook that the device needs.

    Example:
        >>> import torch  # the entry point has called `register` already
        >>> torch.zeros(2, device="jax").device
        device(type='jax', index=0)
    """
    if _registered:
        return
    import torch

    package = __name__.partition(".")[0]
    if _registered or (_is_importing(torch) and _is_importing(sys.modules[package])):
        return  # in the second case whoever imports both calls this next
    if not _is_importing(torch):
        _name_device()
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

    `torch.accelerator` would ask CUDA's runtime, after which a forked process could not use CUDA. `torch.cuda` asks the
    driver's management library.
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
    """Forget that torch imported this package, so that the program's own `import jaxtorch` runs it."""
    package = __name__.partition(".")[0]
    for name in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
        del sys.modules[name]


def _first_call(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator without its own kernel on the device."""
    from .device.start import first_use

    return first_use()(op, *args, **kwargs)
