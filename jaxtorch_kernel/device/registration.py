"""Taking torch's spare backend and naming it `jax`."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils import backend_registration


class _Hooks(torch._C._acc.PrivateUse1Hooks):
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
    from . import guard, module

    backend_registration._setup_privateuseone_for_python_backend(
        "jax", module, _Hooks(), guard.Guard()
    )
    sys.modules["torch.jax"] = module


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch._C._acc.create_empty_tensor((), torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:
        return None


def check_engine() -> None:
    """Make sure that autograd can run on the device; needed where it was registered after torch's import.

    Autograd counts the devices at its first backward, and never again. The probe calls no operator, hence no jax.

    Raises:
        RuntimeError: a backward has run before the device was there.
    """
    out = _Probe.apply(torch.zeros((), device="cpu", requires_grad=True))
    try:
        out.backward(torch._C._acc.create_empty_tensor((), torch.float32))
    except RuntimeError as error:
        raise RuntimeError(
            "jaxtorch was imported after a backward() had run: torch's autograd cannot take a new device any more. "
            "Restart, and import jaxtorch first (or leave TORCH_DEVICE_BACKEND_AUTOLOAD on: then `import torch` "
            "does it)."
        ) from error


_libraries: list[Any] = []
_OTHER_LAYOUTS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantized",
    "NestedTensorPrivateUse1": "nested",
}


def _refuse_layout(kind: str, op: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        f"{op._schema.name}: the jax device holds dense (strided) tensors only, no {kind} ones. Keep this tensor on "
        "the CPU, or make it dense before moving it (`.to_dense()`, `.dequantize()`)."
    )


def _refuse_other_layouts() -> None:
    for key, kind in _OTHER_LAYOUTS.items():
        refusal = torch.library.Library("_", "IMPL")
        refusal.fallback(functools.partial(_refuse_layout, kind), key)
        _libraries.append(refusal)


def _new_storage(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """`torch.UntypedStorage(n, device="jax")`, which `torch.load` calls, may be the first use of the device."""
    if device is not None:
        kwargs["device"] = device
        if torch.device(device).type == "jax":
            first_use()  # puts another `__new__` into this one's place
            return torch.UntypedStorage(*args, **kwargs)
    return _new_of_torch(cls, *args, **kwargs)


_new_of_torch: Any = torch._C.StorageBase.__new__


def _to_dlpack(tensor: torch.Tensor) -> Any:
    """A capsule of a tensor's memory, for the other library's `from_dlpack`.

    A program may import it before it uses the device. torch's own looks for the data at an address, and a tensor of the
    device has none.
    """
    return tensor.__dlpack__() if tensor.device.type == "jax" else torch._C._to_dlpack(tensor)


def _call_class(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Make an instance of a class of `torch.Generator`'s kind: `torch.Generator("jax")` is a generator of the device.

    torch asks the device's hooks for one, in C++, and hooks written in Python are not asked. The class itself is C's
    and cannot change; the class of that class is Python's, and has no `__call__` of its own.
    """
    if cls is torch.Generator:
        device = args[0] if args else kwargs.get("device")
        if device is not None and torch.device(device).type == "jax":
            first_use()
            from ..operators.generator import JaxGenerator

            return JaxGenerator()
    return type.__call__(cls, *args, **kwargs)


def install(library: Any) -> None:
    """What torch must know before there is any tensor of the device: `library` gets the kernels."""
    from ..operators import pinning
    from . import accelerator

    accelerator.install()
    torch.utils.dlpack.to_dlpack = _to_dlpack  # type: ignore[attr-defined, assignment]  # ours
    pinning.install(library)
    torch.UntypedStorage.__new__ = _new_storage  # type: ignore[method-assign]
    type(torch.Generator).__call__ = _call_class  # type: ignore[method-assign,assignment]
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )


_first_use_lock = threading.RLock()
_run: Callable[..., Any] | None = None


def first_use() -> Callable[..., Any]:
    """Start jax and the rest of the device, once; returns the function that runs any operator.

    torch calls it (`torch.jax._lazy_init`) before the first tensor that a Python function makes on the device, the
    device's fallback before the first that anything else makes.
    """
    global _run
    with _first_use_lock:
        if _run is None:
            from ..operators import higher_order, methods, storages
            from ..operators.registration import install as install_operators
            from ..storage import placement
            from . import amp, fork, guard, interrupts, processes

            # First what may fail for want of a library, registering nothing: the next try fails with the same words.
            placement.devices()
            run = install_operators()
            fork.start()
            guard.stop_asking_python()
            amp.install()
            methods.install()
            processes.install()
            storages.install()
            higher_order.install()
            _refuse_other_layouts()
            interrupts.install()
            _run = run
    return _run
