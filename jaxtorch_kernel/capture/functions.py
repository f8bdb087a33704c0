"""Gradients that the user wrote, inside code that `jax.vjp` differentiates: `autograd.Function` and hooks.

torch's own autograd is not what differentiates captured code, so that a `Function`'s backward (`custom.py`), a hook on
a tensor, or those of a module (`module_hooks.py`) must be told to JAX: each becomes a `jax.custom_vjp`.

torch has no way in for any of them, so that while a trace is open `Function.apply`, `Tensor.register_hook` and their
like are replaced; in a thread that is not tracing they go to torch's own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
import torch
from torch.autograd.function import Function
from torch.nn import Module
from torch.nn.modules import module
from torch.utils.hooks import BackwardHook, RemovableHandle

from ..base import torch_private as private
from ..programs import tracing
from ..storage.buffer import buffer_of
from .bodies import aval_of, trace_body, whole
from .custom import CustomCall, is_ours
from .errors import CaptureError
from .intercepted import intercepted
from .module_hooks import TracedBackwardHook

Tensor = torch.Tensor
_apply = vars(Function)["apply"]
_register_hook = Tensor.register_hook
_register_accumulated = Tensor.register_post_accumulate_grad_hook
_detach = Tensor.detach_
# Of the cells with hooks: the array without them, its hooks, and the array with them.
_hooks: WeakKeyDictionary[Any, tuple[Any, list[Any], Any]] = WeakKeyDictionary()
_warn = Module._maybe_warn_non_full_backward_hook


def _differentiable() -> bool:
    trace = tracing.current()
    return (
        trace is not None
        and trace.differentiable
        and torch.is_grad_enabled()
        and not private.transformed()
    )


# -- autograd.Function --------------------------------------------------------------------------------------------


def _apply_traced(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    differentiable = any(is_ours(a) and a.requires_grad for a in args)
    if not differentiable or not _differentiable():
        return _apply.__get__(None, cls)(*args, **kwargs)
    return CustomCall(cls, args).run()


# -- tensor hooks -------------------------------------------------------------------------------------------------


def _register_traced(self: Tensor, hook: Any) -> Any:
    trace = tracing.current()
    if not _differentiable() or trace is None or not is_ours(self):
        return _register_hook(self, hook)
    cell = buffer_of(self)
    if not trace.bore(cell):
        what, advice = "that captured code did not make", "Register it outside, once."
    elif not whole(self):
        what, advice = "that is a part of another", "Register it on x.clone(), and go on with that."
    elif id(cell) in trace.read_cells:
        what, advice = "that was used already", "Register it as soon as the tensor is made."
    else:
        return _hook_by_jax(self, hook, cell)
    raise CaptureError(f"a hook on a tensor {what}", advice)


def _hook_by_jax(self: Tensor, hook: Any, cell: Any) -> RemovableHandle:
    with torch.no_grad():
        body = trace_body(
            lambda g: g if (new := hook(g)) is None else new, [aval_of(self)], "a tensor hook"
        )

    @jax.custom_vjp
    def hooked(constants: Any, x: Any) -> Any:
        return x

    def pull_back(constants: Any, cotangent: Any) -> Any:
        key = np.zeros(2, np.uint32)
        result, _ = jax.core.eval_jaxpr(body.jaxpr, constants, key, cotangent.conj())
        return None, result.conj()

    hooked.defvjp(lambda constants, x: (x, constants), pull_back)
    bare, hooks, latest = _hooks.get(cell, (cell.array, [], cell.array))
    if latest is not cell.array:  # it was written to
        bare, hooks = cell.array, []
    # The first that was registered is the first that runs: the last that a gradient comes by is the innermost.
    hooks = [(hooked, body.constants), *hooks]
    array = bare
    for function, constants in hooks:
        array = function(constants, array)
    cell.array = array
    _hooks[cell] = bare, hooks, array
    return RemovableHandle(OrderedDict())


def _detach_traced(self: Tensor) -> Tensor:
    trace = tracing.current()
    if trace is not None and is_ours(self):
        trace.detach(self)
    return _detach(self)


def _register_accumulated_traced(self: Tensor, hook: Any) -> Any:
    if _differentiable() and is_ours(self):
        raise CaptureError(
            "register_post_accumulate_grad_hook inside captured code: a leaf keeps its hooks from call to call",
            "Register it outside, once.",
        )
    return _register_accumulated(self, hook)


# -- hooks of modules ---------------------------------------------------------------------------------------------


def _backward_hook(*args: Any) -> Any:
    return TracedBackwardHook(*args) if _differentiable() else BackwardHook(*args)


def _warn_traced(self: Module, *args: Any) -> Any:
    """What a module calls where it has a hook of the old kind, which looks at the nodes of torch's graph."""
    if _differentiable():
        raise CaptureError(
            "a hook by register_backward_hook, which is of one node of torch's graph",
            "Use register_full_backward_hook.",
        )
    return _warn(self, *args)


# Held while code is traced for `jax.vjp`.
intercepted.add(
    (Function, "apply", classmethod(_apply_traced)),
    (Tensor, "register_hook", _register_traced),
    (Tensor, "register_post_accumulate_grad_hook", _register_accumulated_traced),
    (Tensor, "detach_", _detach_traced),
    (module, "BackwardHook", _backward_hook),
    (Module, "_maybe_warn_non_full_backward_hook", _warn_traced),
)
