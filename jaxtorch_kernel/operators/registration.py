"""Registration with torch's dispatcher, once, at the first use of the device.

Even an unregistered operator reaches the device's fallback (`autoload._first_call`). Those with a lowering or a
kernel are still registered: this saves 1.5 µs per call, and torch would otherwise split its structured operators into
three steps (`empty`, `resize_`, `.out`).
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..base import torch_private as private
from ..dispatch.hot import hot_path
from ..dispatch.registry import KERNELS
from ..dispatch.schema import Signature, short_name
from ..lowerings.registry import LOWERINGS
from .choice import operation_of

_lock = threading.RLock()
_installed: Callable[..., Any] | None = None
_libraries: list[Any] = []


def install() -> Callable[..., Any]:
    """Import every lowering, register the kernels, and return the function that runs any operator."""
    global _installed
    with _lock:
        if _installed is None:
            import_all()
            library = torch.library.Library("aten", "IMPL")
            _libraries.append(library)
            _register(library)
            _installed = run
    return _installed


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator of any namespace, registered or not."""
    kernel = KERNELS.get(short_name(op)) if op.namespace == "aten" else None
    if kernel is not None:
        return kernel(*args, **kwargs)
    return operation_of(op)(*args, **kwargs)


def import_all() -> None:
    """Import every module that fills the tables of kernels and lowerings."""
    from .. import lowerings, operators

    for package in (lowerings, operators):
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def _register(library: Any) -> None:
    for name, kernel in KERNELS.items():
        if private.overload(name) is None:
            continue
        library.impl(_dispatcher_name(name), kernel, "PrivateUse1")
        if private.has_kernel(f"aten::{_dispatcher_name(name)}", "CompositeImplicitAutograd"):
            # A composite kept whole: what its kernel calls brings the gradients.
            library.impl(_dispatcher_name(name), kernel, "AutogradPrivateUse1")
    for name in list(LOWERINGS):
        op = private.overload(name)
        if op is None:
            continue
        for overload in (op, *_siblings(op)):
            _register_one(library, overload)


def _register_one(library: Any, op: Any) -> None:
    name = short_name(op)
    if name in KERNELS or name in _done or _is_composite(op):
        return
    _done.add(name)

    kernel = hot_path(lambda: operation_of(op))
    if any(_sees(op, key) for key in ("Conjugate", "Negative")):
        kernel = _resolving(kernel)
    library.impl(_dispatcher_name(name), kernel, "PrivateUse1")


def _sees(op: Any, key: str) -> bool:
    return private.has_kernel(f"aten::{_dispatcher_name(short_name(op))}", key)


def _resolving(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """For the operators that torch lets see lazy conjugate and negative bits (`mm`, `clone`): resolve them first."""

    def resolve(a: Any) -> Any:
        if isinstance(a, torch.Tensor) and (a.is_conj() or a.is_neg()):
            return a.resolve_conj().resolve_neg()
        return a

    def resolved(*args: Any, **kwargs: Any) -> Any:
        return kernel(*map(resolve, args), **kwargs)

    return resolved


_done: set[str] = set()


def _siblings(op: Any) -> list[Any]:
    """The in-place and `out=` overloads whose functional overload this is."""
    base = op._schema.name.split("::")[1]
    found = []
    for name in (base, f"{base}_"):
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            candidate = getattr(packet, overload)
            if candidate is not op and Signature(candidate).functional is op:
                found.append(candidate)
    return found


def _is_composite(op: Any) -> bool:
    """A composite of autograd: a device kernel would detach it from its gradient.

    One with a CPU kernel beside the composite (`silu_backward`) is meant to have kernels.
    """
    name = f"aten::{short_name(op)}".removesuffix(".default")
    return private.has_kernel(name, "CompositeImplicitAutograd") and not private.has_kernel(
        name, "CPU"
    )


def _dispatcher_name(name: str) -> str:
    return name.removesuffix(".default")
