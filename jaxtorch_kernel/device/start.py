"""The first use of the device: jax starts, the operators are registered, and torch's classes are extended."""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

_libraries: list[Any] = []
_OTHER_LAYOUTS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantized",
    "NestedTensorPrivateUse1": "nested",
}


def _refuse_layout(kind: str, op: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        f"{op._schema.name}: the jax device supports only dense (strided) tensors, not {kind} ones. Keep this tensor "
        "on the CPU, or make it dense before moving it (`.to_dense()`, `.dequantize()`)."
    )


def _refuse_other_layouts() -> None:
    for key, kind in _OTHER_LAYOUTS.items():
        refusal = torch.library.Library("_", "IMPL")
        refusal.fallback(functools.partial(_refuse_layout, kind), key)
        _libraries.append(refusal)


_INDUCTOR = (
    "torch.compile's default backend (inductor) compiles nothing for the jax device: use "
    'torch.compile(f, backend="jax")'
)
_lock = threading.RLock()
_run: Callable[..., Any] | None = None


def first_use() -> Callable[..., Any]:
    """Start jax and the rest of the device, once; returns the function that runs any operator.

    torch calls it (as `torch.jax._lazy_init`) before a Python function makes the first tensor on the device. If
    something else makes the first tensor, the device's fallback kernel calls it (`autoload.py`).
    """
    global _run
    with _lock:
        if _run is None:
            from ..base import torch_changes
            from ..deferred.switch import switch
            from ..operators import higher_order, methods, storages
            from ..operators.registration import install as install_operators
            from ..storage import placement
            from . import (
                allocator,
                autocast,
                builtin_events,
                copies,
                extensions,
                fork,
                guard,
                interrupts,
                optimizers,
                processes,
                sharded_optimizers,
                streams,
                uncaught,
            )
            from . import random as random  # applies an earlier `torch.manual_seed`

            # Starting jax comes first, because it may fail, for example if a library is missing. Nothing has been
            # registered by then, so the next attempt fails with the same message.
            placement.devices()
            run = install_operators()
            fork.start()
            atexit.register(streams.finish)
            guard.switch_streams_in_cpp()
            allocator.install()
            extensions.extend_torch()
            builtin_events.install()
            copies.install()
            autocast.install()
            optimizers.install()
            sharded_optimizers.install()
            methods.install()
            processes.install()
            storages.install()
            higher_order.install()
            _refuse_other_layouts()
            torch_changes.refuse_inductor(_INDUCTOR)
            interrupts.install()
            uncaught.install()
            switch.follow_options()
            _run = run
    return _run
