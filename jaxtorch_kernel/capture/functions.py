"""Gradients that the user wrote, inside code that `jax.vjp` differentiates: `autograd.Function` and tensor hooks.

torch's own autograd is not what differentiates captured code, so that a `Function`'s backward, or a hook on a tensor,
must be told to JAX: each becomes a `jax.custom_vjp`. Forward and backward are traced once, there and then, into jaxprs
(`bodies.py`), so that no torch code runs later, when JAX differentiates.

torch has no registered hook for either, so that while a trace is open `Function.apply` and `Tensor.register_hook` are
replaced; in a thread that is not tracing both go to torch's own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax
import numpy as np
import torch
from torch.autograd.function import Function
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import RemovableHandle

from .. import _torch_private as private
from ..dispatch import tracing
from ..replaced import Replaced
from ..storage.buffer import buffer_of
from .bodies import aval_of, trace_body, whole
from .custom import CustomCall, is_ours
from .errors import CaptureError

Tensor = torch.Tensor
_apply = vars(Function)["apply"]
_register_hook = Tensor.register_hook
_detach = Tensor.detach_


def _differentiable() -> bool:
    trace = tracing.current()
    return trace is not None and trace.differentiable and torch.is_grad_enabled()


# -- autograd.Function --------------------------------------------------------------------------------------------


def _apply_traced(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    smooth = any(is_ours(a) and a.requires_grad for a in args)
    if not smooth or not _differentiable() or private.interposed(()):
        return _apply.__get__(None, cls)(*args, **kwargs)
    if issubclass(cls, BackwardHookFunction):
        raise CaptureError(
            "a module's backward hook runs in torch's own backward, which captured code does not have",
            "Register a hook on the module's output tensor, or run this part outside.",
        )
    return CustomCall(cls, args).run()


# -- tensor hooks -------------------------------------------------------------------------------------------------


def _register_traced(self: Tensor, hook: Any) -> Any:
    trace = tracing.current()
    if not _differentiable() or trace is None or not is_ours(self):
        return _register_hook(self, hook)
    cell = buffer_of(self)
    if not trace.bore(cell) or not whole(self) or id(cell) in trace.read_cells:
        raise CaptureError(
            "a hook on a tensor that captured code did not make, has used already, or that is a part of another",
            "Register it outside, or as soon as the tensor is made.",
        )
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
    cell.array = hooked(body.constants, cell.array)
    return RemovableHandle(OrderedDict())


def _detach_traced(self: Tensor) -> Tensor:
    trace = tracing.current()
    if trace is not None and is_ours(self):
        trace.detach(self)
    return _detach(self)


# Held while code is traced for `jax.vjp`.
intercepted = Replaced(
    (Function, "apply", classmethod(_apply_traced)),
    (Tensor, "register_hook", _register_traced),
    (Tensor, "detach_", _detach_traced),
)
