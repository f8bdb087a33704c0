"""Chooses the implementation of an operator, once per overload. There is always one, and a fallback is reported.

1. A kernel over tensors, if there is one (`registry.KERNELS`; torch's dispatcher calls it, see `registration.py`).
2. The overload's own lowering, or its functional overload's.
3. A view operator without a kernel (`view.dtype`): torch's kernel makes the alias (`views.py`).
4. torch's decomposition, as one program (`dispatch/decomposed.py`). If it needs values:
5. The CPU kernel, on copies (`dispatch/cpu.py`).
"""

from __future__ import annotations

from typing import Any

from ..base.torch_private import OpOverload
from ..dispatch.cpu import on_cpu
from ..dispatch.decomposed import Decomposed, decomposition_of
from ..dispatch.operation import Operation
from ..dispatch.schema import Kernel, Signature, short_name
from ..lowerings.registry import LOWERINGS
from .views import view

_operations: dict[OpOverload, Kernel] = {}


def operation_of(op: OpOverload) -> Any:
    """The implementation of an overload on the device, created at its first use."""
    operation = _operations.get(op)
    if operation is None:
        operation = _operations[op] = _choose(op)
    return operation


def _choose(op: OpOverload) -> Kernel:
    signature = Signature(op)
    lowering = LOWERINGS.get(short_name(op)) if op.namespace == "aten" else None
    if lowering is None and signature.functional is not None and op.namespace == "aten":
        lowering = LOWERINGS.get(short_name(signature.functional))
    if lowering is not None:
        return Operation(op, lowering, operation_of, copy_cpu=short_name(op) in COPIES_CPU)
    if signature.is_view:
        return lambda *args, **kwargs: view(op, *args, **kwargs)
    decomposition = decomposition_of(op, signature)
    if decomposition is not None:
        return Decomposed(op, decomposition, operation_of)
    return lambda *args, **kwargs: on_cpu(op, signature, args, kwargs)


# The indices of these may be on the CPU, as on cuda.
COPIES_CPU = {"index.Tensor", "index_put.default", "index_put_.default", "_index_put_impl_.default"}
