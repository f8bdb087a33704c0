"""User-defined gradients inside code that `jax.vjp` differentiates: `autograd.Function` and hooks.

JAX, not torch's autograd, differentiates captured code. So a `Function`'s backward (`custom.py`), a hook on a tensor
and the hooks of a module (`module_hooks.py`) each become a `jax.custom_vjp`. A hook on a tensor wraps the array of the
tensor's buffer in an identity whose gradient is the hook.

torch has no extension point for them, so what `Function.apply` looks up (`applied.py`), `Tensor.register_hook` and
similar methods are replaced while a trace is open. In a thread that is not tracing, they do what torch does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import torch
from torch.nn import Module
from torch.nn.modules import module
from torch.utils.hooks import BackwardHook, RemovableHandle

from ..base import torch_private as private
from ..programs import tracing
from ..programs.trees import is_device_tensor
from ..storage.buffer import Buffer, buffer_of
from ..storage.layout import covers_buffer
from .applied import attribute_of_function, differentiable
from .bodies import aval_of, pull_back, trace_body
from .errors import CaptureError
from .intercepted import intercepted
from .module_hooks import TracedBackwardHook

Tensor = torch.Tensor
_register_hook = Tensor.register_hook
_register_accumulated = Tensor.register_post_accumulate_grad_hook
_detach = Tensor.detach_
# A hook of the user's on the gradient of a tensor. None: the gradient stays as it is.
TensorHook = Callable[[Tensor], Tensor | None]
Constants = list[jax.Array]


class _Hooked(NamedTuple):
    """The hooks on a tensor: its array without them, each with its constants, and the array with them."""

    bare: jax.Array
    hooks: list[tuple[Callable[[Constants, jax.Array], jax.Array], Constants]]
    array: jax.Array


_hooks: WeakKeyDictionary[Buffer, _Hooked] = WeakKeyDictionary()
_warn = Module._maybe_warn_non_full_backward_hook


# -- tensor hooks -------------------------------------------------------------------------------------------------


def _register_traced(self: Tensor, hook: TensorHook) -> RemovableHandle:
    trace = tracing.current()
    if not differentiable() or trace is None or not is_device_tensor(self):
        handle: RemovableHandle = _register_hook(self, hook)
        return handle
    buffer = buffer_of(self)
    if not trace.created_here(buffer):
        what, advice = "created outside it", "Register it once, outside the captured code."
    elif not covers_buffer(self):
        what, advice = (
            "that is a view of another",
            "Register it on y = x.clone() and use y instead.",
        )
    elif id(buffer) in trace.read_buffers:
        what, advice = "that has already been used", "Register it right after creating the tensor."
    else:
        return _hook_by_jax(self, hook, buffer)
    raise CaptureError(f"the captured code registers a hook on a tensor {what}", advice)


def _hook_by_jax(self: Tensor, hook: TensorHook, buffer: Buffer) -> RemovableHandle:
    with torch.no_grad():
        body = trace_body(
            lambda g: g if (new := hook(g)) is None else new, [aval_of(self)], "a tensor hook"
        )

    @jax.custom_vjp
    def hooked(constants: Constants, x: jax.Array) -> jax.Array:
        return x

    def backward(constants: Constants, cotangent: jax.Array) -> tuple[None, jax.Array]:
        (gradient,) = pull_back(body.jaxpr, constants, [cotangent])
        return None, gradient

    hooked.defvjp(lambda constants, x: (x, constants), backward)
    bare, hooks, latest = _hooks.get(buffer, (buffer.array, [], buffer.array))
    if latest is not buffer.array:  # it was written to
        bare, hooks = buffer.array, []
    # Hooks run in the order of registration. A gradient reaches the innermost identity last, so a new hook goes there.
    hooks = [(hooked, body.constants), *hooks]
    array = bare
    for function, constants in hooks:
        array = function(constants, array)
    buffer.array = array
    _hooks[buffer] = _Hooked(bare, hooks, array)
    return RemovableHandle(OrderedDict())


def _detach_traced(self: Tensor) -> Tensor:
    trace = tracing.current()
    if trace is not None and is_device_tensor(self):
        trace.active.detach(self)
    return _detach(self)


def _register_accumulated_traced(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    if differentiable() and is_device_tensor(self):
        raise CaptureError(
            "captured code calls register_post_accumulate_grad_hook, but a leaf keeps its hooks across calls",
            "Register it once, outside the captured code.",
        )
    handle: RemovableHandle = _register_accumulated(self, hook)
    return handle


# -- hooks of modules ---------------------------------------------------------------------------------------------


def _backward_hook(*args: Any) -> BackwardHook:
    return TracedBackwardHook(*args) if differentiable() else BackwardHook(*args)


def _warn_traced(self: Module, *args: object) -> object:
    """Refuses hooks of `register_backward_hook`, which read nodes of torch's graph; a module with one calls this."""
    if differentiable():
        raise CaptureError(
            "a module has a hook from register_backward_hook, which needs a node of torch's graph",
            "Use register_full_backward_hook.",
        )
    return _warn(self, *args)


# In effect while code is traced for `jax.vjp`.
intercepted.add(
    (private.FunctionMeta, "__getattribute__", attribute_of_function),
    (Tensor, "register_hook", _register_traced),
    (Tensor, "register_post_accumulate_grad_hook", _register_accumulated_traced),
    (Tensor, "detach_", _detach_traced),
    (module, "BackwardHook", _backward_hook),
    (Module, "_maybe_warn_non_full_backward_hook", _warn_traced),
)
