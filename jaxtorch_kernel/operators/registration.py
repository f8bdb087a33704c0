"""Registration with torch's dispatcher, once, at the first use of the device.

An unregistered operator reaches the device's fallback (`autoload._first_call`). Operators with a lowering or a kernel
are registered all the same: this saves 1.5 µs per call, and torch would otherwise split its structured operators into
three steps (`empty`, `resize_`, `.out`).
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
import warnings
from collections.abc import Callable
from functools import partial
from itertools import starmap
from types import ModuleType

import torch
from torch.library import Library

from ..base import torch_private as private
from ..base.torch_private import OpOverload
from ..dispatch.hot import hot_path, successor_of
from ..dispatch.registry import ABOVE_AUTOGRAD, ELSEWHERE, IN_BATCHES, KERNELS
from ..dispatch.schema import Kernel, Signature, short_name
from ..lowerings.registry import LOWERINGS
from ..native import loading
from .choice import operation_of
from .views import VIEWS

_lock = threading.RLock()
_installed: Kernel | None = None
_libraries: list[Library] = []


def install() -> Kernel:
    """Import every lowering, register the kernels, and return the function that runs any operator."""
    global _installed
    with _lock:
        if _installed is None:
            import_all()
            library = Library("aten", "IMPL")
            _libraries.append(library)
            _register(library)
            _libraries.extend(starmap(_register_elsewhere, ELSEWHERE.items()))
            _installed = run
    return _installed


def run(op: OpOverload, *args: object, **kwargs: object) -> object:
    """Run an operator of any namespace, registered or not."""
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


def _register(library: Library) -> None:
    for name, kernel in KERNELS.items():
        if private.overload(name) is None:
            continue
        is_view = name.removesuffix(".default") in (*VIEWS, "as_strided")
        _implement(library, name, kernel, is_view)
        if private.has_kernel(f"aten::{_dispatcher_name(name)}", "CompositeImplicitAutograd"):
            # The kernel replaces a composite above autograd: the operators that it calls have the gradients.
            library.impl(_dispatcher_name(name), kernel, "AutogradPrivateUse1")
    for name, kernel in ABOVE_AUTOGRAD.items():
        _implement_above_autograd(library, _dispatcher_name(name), kernel)
    for name, kernel in IN_BATCHES.items():
        library.impl(_dispatcher_name(name), kernel, "FuncTorchBatched")
    for name in list(LOWERINGS):
        op = private.overload(name)
        if op is None:
            continue
        for overload in (op, *_siblings(op)):
            _register_one(library, overload)


def _register_elsewhere(name: str, kernel: Kernel) -> Library:
    namespace, _, operator = name.partition("::")
    library = Library(namespace, "IMPL")
    library.impl(operator, kernel, "PrivateUse1")
    return library


def _register_one(library: Library, op: OpOverload) -> None:
    name = short_name(op)
    if name in KERNELS or name in _registered or _is_composite(op):
        return
    _registered.add(name)

    lazy = any(_handles(op, bit) for bit in ("Conjugate", "Negative"))
    kernel = hot_path(lambda: operation_of(op), _resolving if lazy else None)
    _implement(library, name, kernel)


def _implement(library: Library, name: str, kernel: Kernel, is_view: bool = False) -> None:
    """Register a kernel for the device, behind one in C++ where there is such (`native/dispatched.h`)."""
    is_behind = _is_behind(name, kernel, is_view)
    library.impl(_dispatcher_name(name), kernel, "PrivateUse2" if is_behind else "PrivateUse1")
    if loading.calls is None:
        _exchanges.append(partial(_put_behind, library, name, kernel, is_view))


def _is_behind(name: str, kernel: Kernel, is_view: bool) -> bool:
    """Let the compiled module take the calls of a kernel, if it can; whether it does."""
    calls = loading.calls
    if calls is None or not (is_view or isinstance(kernel, calls.Kernel)):
        return False
    base, _, overload = _dispatcher_name(name).partition(".")
    is_behind: bool = calls.dispatch(f"aten::{base}", overload, None if is_view else kernel)
    return is_behind


def _put_behind(library: Library, name: str, kernel: Kernel, is_view: bool) -> None:
    """Put the compiled module before a kernel that was registered without it."""
    kernel = successor_of(kernel)
    if _is_behind(name, kernel, is_view):
        library.impl(_dispatcher_name(name), kernel, "PrivateUse2")


# What is to be done when there is a compiled module, for all that was registered before.
_exchanges: list[Callable[[], None]] = []


@loading.when_loaded
def _exchange(_: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that a kernel is replaced
        while _exchanges:
            _exchanges.pop()()


# Those of `products.py`: whether their second argument is the matrix of a layer, and whether torch has a formula for
# their gradient.
_PRODUCTS = {
    "linear": (True, True),
    "matmul": (False, True),
    "linear_backward": (False, False),
    "matmul_backward": (False, False),
}


def _implement_above_autograd(library: Library, name: str, kernel: Kernel) -> None:
    """Register what runs before autograd, behind the C++ that takes ordinary calls (`native/products.h`)."""
    is_behind = loading.calls is not None and name in _PRODUCTS
    if loading.calls is not None and is_behind:
        loading.calls.dispatch_product(f"aten::{name}", *_PRODUCTS[name])
    library.impl(name, kernel, "AutogradPrivateUse2" if is_behind else "AutogradPrivateUse1")
    if loading.calls is None and name in _PRODUCTS:
        _exchanges.append(partial(_implement_above_autograd, library, name, kernel))


def _handles(op: OpOverload, bit: str) -> bool:
    """Whether torch passes lazily conjugated or negated tensors to the operator's kernel."""
    return private.has_kernel(f"aten::{_dispatcher_name(short_name(op))}", bit)


def _resolving(kernel: Kernel) -> Kernel:
    """A kernel that resolves lazy conjugation and negation first, for operators that handle them (`mm`, `clone`)."""

    def resolve(a: object) -> object:
        if isinstance(a, torch.Tensor) and (a.is_conj() or a.is_neg()):
            return a.resolve_conj().resolve_neg()
        return a

    def resolved(*args: object, **kwargs: object) -> object:
        return kernel(*map(resolve, args), **kwargs)

    return resolved


_registered: set[str] = set()


def _siblings(op: OpOverload) -> list[OpOverload]:
    """The in-place and `out=` overloads whose functional overload is `op`."""
    base = op._schema.name.split("::")[1]
    siblings = []
    for name in (base, f"{base}_"):
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            candidate = getattr(packet, overload)
            if candidate is not op and Signature(candidate).functional is op:
                siblings.append(candidate)
    return siblings


def _is_composite(op: OpOverload) -> bool:
    """Whether autograd sees only the operators that this one is composed of: a kernel would cut off its gradient.

    Composites with a CPU kernel (`silu_backward`) are meant to have kernels. For composites with a kernel for autograd
    (`linear`, `matmul`) torch has a gradient formula, which it uses where the device has a kernel.
    """
    name = f"aten::{short_name(op)}".removesuffix(".default")
    return private.has_kernel(name, "CompositeImplicitAutograd") and not any(
        private.has_kernel(name, key) for key in ("CPU", "Autograd")
    )


def _dispatcher_name(name: str) -> str:
    return name.removesuffix(".default")
