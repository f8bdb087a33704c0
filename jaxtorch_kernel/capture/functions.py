"""User-defined gradients inside code that `jax.vjp` differentiates: `autograd.Function` and hooks.

JAX, not torch's autograd, differentiates captured code. So a `Function`'s backward (`custom.py`), a hook on a tensor
and the hooks of a module (`module_hooks.py`) each become a `jax.custom_vjp`.

torch has no extension point for them, so `Function.apply`, `Tensor.register_hook` and similar methods are replaced
while a trace is open. In a thread that is not tracing, the replacements call torch's own methods.
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
from ..storage.layout import covers_buffer
from .bodies import aval_of, trace_body
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
    if not trace.created_here(cell):
        what, advice = "created outside it", "Register it once, outside the captured code."
    elif not covers_buffer(self):
        what, advice = (
            "that is a view of another",
            "Register it on y = x.clone() and use y instead.",
        )
    elif id(cell) in trace.read_buffers:
        what, advice = "that has already been used", "Register it right after creating the tensor."
    else:
        return _hook_by_jax(self, hook, cell)
    raise CaptureError(f"the captured code registers a hook on a tensor {what}", advice)


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
            "captured code calls register_post_accumulate_grad_hook, but a leaf keeps its hooks across calls",
            "Register it once, outside the captured code.",
        )
    return _register_accumulated(self, hook)


# -- hooks of modules ---------------------------------------------------------------------------------------------


def _backward_hook(*args: Any) -> Any:
    return TracedBackwardHook(*args) if _differentiable() else BackwardHook(*args)


def _warn_traced(self: Module, *args: Any) -> Any:
    """Replaces what a module calls if it has a hook of `register_backward_hook`, which reads nodes of torch's graph."""
    if _differentiable():
        raise CaptureError(
            "a module has a hook from register_backward_hook, which needs a node of torch's graph",
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
