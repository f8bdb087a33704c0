"""What the first use of the device imports and registers with torch: operators, and extensions of its classes."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from typing import NoReturn

import torch

from ..base import torch_changes
from ..base.torch_private import OpOverload
from ..deferred.switch import switch
from ..operators import higher_order, methods, storages
from ..operators.registration import install as install_operators
from . import (
    allocator,
    autocast,
    builtin_events,
    copies,
    extensions,
    fork,
    guard,
    optimizers,
    processes,
    sharded_optimizers,
    streams,
    uncaught,
)
from . import random as random  # applies an earlier `torch.manual_seed`

_INDUCTOR = (
    "torch.compile's default backend (inductor) compiles nothing for the jax device: use "
    'torch.compile(f, backend="jax")'
)
_libraries: list[torch.library.Library] = []
_OTHER_LAYOUTS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantized",
    "NestedTensorPrivateUse1": "nested",
}


def _refuse_layout(kind: str, op: OpOverload, *args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError(
        f"{op._schema.name}: the jax device supports only dense (strided) tensors, not {kind} ones. Keep this tensor "
        "on the CPU, or make it dense before moving it (`.to_dense()`, `.dequantize()`)."
    )


def _refuse_other_layouts() -> None:
    for key, kind in _OTHER_LAYOUTS.items():
        refusal = torch.library.Library("_", "IMPL")
        refusal.fallback(functools.partial(_refuse_layout, kind), key)
        _libraries.append(refusal)


def install() -> Callable[..., object]:
    """Register everything; returns the function that runs any operator."""
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
    torch_changes.run_metas_without_dynamo()
    uncaught.install()
    switch.follow_options()
    return run
