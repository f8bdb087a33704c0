"""Calls of `Function.apply` inside captured code, intercepted where torch's C++ makes them.

Code may know `Function.apply` by a name from before the trace (`rounded = Rounded.apply`), and torch 2.15 wrote it in
C++, so that replacing an attribute does not reach such a call. But the C++ asks the class for three attributes during
each call, in this order, and the metaclass can answer:

- `_backward_cls`, the class of the node in torch's graph: a subclass (`RecordedCall`);
- `forward`: a function that makes a `CustomCall`, and returns its results;
- `setup_context`, which not every Function has: a function that ends the call.

The C++ then puts the `RecordedCall` into torch's graph instead of the node that `CustomCall` made for its results. So
it passes the gradients on to that node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch.autograd.function import Function

from ..base import torch_private as private
from ..operators.node import Node
from ..programs import tracing
from ..programs.trees import is_device_tensor
from .custom import CustomCall
from .recorded_call import RecordedCall

Tensor = torch.Tensor


class _Stage(threading.local):
    """What C++ asks for next in this thread."""

    forward_of: type[Function] | None = None
    ended: CustomCall | None = None


_stage = _Stage()


def differentiable() -> bool:
    """Whether JAX differentiates what this thread runs."""
    trace = tracing.current()
    return (
        trace is not None
        and trace.differentiable
        and torch.is_grad_enabled()
        and not private.transformed()
    )


def attribute_of_function(cls: type, name: str) -> object:
    """Replaces `__getattribute__` of the metaclass while a differentiable trace is open."""
    value = type.__getattribute__(cls, name)
    if name == "_backward_cls":
        _stage.forward_of = cls if cls is not Node and differentiable() else None
        return type(value.__name__, (RecordedCall, value), {}) if _stage.forward_of else value
    if name == "forward" and _stage.forward_of is cls:
        _stage.forward_of = None
        return _forward(cls, value)
    if name == "setup_context" and _stage.ended is not None and _stage.ended.cls is cls:
        call, _stage.ended = _stage.ended, None
        return lambda node, inputs, output: _record(node, call, output)
    return value


def _forward(cls: type[Function], plain: Callable[..., object]) -> Callable[..., object]:
    has_context = type.__getattribute__(cls, "setup_context") is Function.setup_context

    def forward(*given: object) -> object:
        args = given[1:] if has_context else given
        if not any(is_device_tensor(a) and a.requires_grad for a in args):
            return plain(*given)
        call = CustomCall(cls, args)
        with torch.enable_grad():  # `apply` has switched it off
            result = call.run()
        if not has_context:
            _stage.ended = call
        elif isinstance(given[0], RecordedCall):
            _record(given[0], call, result)
        return result

    return forward


def _record(node: RecordedCall, call: CustomCall, result: object) -> None:
    """Give the node the gradients of this call, and tell C++ which of its results have any."""
    values = result if isinstance(result, tuple) else (result,)
    recorded = dict(zip(call.output_indices, call.recorded, strict=True))
    node.set_materialize_grads(False)
    node.mark_dirty(*(call.tensors[i] for i in call.dirty.values()))
    node.mark_non_differentiable(
        *(v for i, v in enumerate(values) if isinstance(v, Tensor) and not recorded.get(i))
    )
    node.inner = call.node
    node.outputs = [i for i, is_recorded in recorded.items() if is_recorded]
    inputs = zip(call.indices, call.tensors, strict=True)
    node.inputs = [i for i, tensor in inputs if tensor.requires_grad]
    node.count = len(call.args)
    # C++ has an edge for each tensor among the arguments.
    tensors = [i for i, a in enumerate(call.args) if isinstance(a, Tensor)]
    node.flow = [frozenset()] * len(values)
    for index, flow in zip(call.output_indices, call.flow, strict=True):
        node.flow[index] = frozenset(tensors.index(call.indices[i]) for i in flow.operands)
