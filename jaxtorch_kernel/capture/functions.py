"""Gradients that the user wrote, inside code that `jax.vjp` differentiates: `autograd.Function` and tensor hooks.

torch's own autograd is not what differentiates captured code, so that a `Function`'s backward, or a hook on a tensor,
must be told to JAX: each becomes a `jax.custom_vjp`. Forward and backward are traced once, there and then, into jaxprs
(`bodies.py`), so that no torch code runs later, when JAX differentiates.

torch has no registered hook for either, so that while a trace is open `Function.apply` and `Tensor.register_hook` are
replaced; in a thread that is not tracing both go to torch's own.
"""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import torch
from torch.autograd.function import Function
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import RemovableHandle

from ..device import rng
from ..dispatch import tracing
from ..dispatch.read import contiguous_array
from ..interop.bridge import Bridge, avals_of
from ..interop.compiled import Compiled
from ..replaced import Replaced
from ..storage import placement
from ..storage.buffer import buffer_of
from .bodies import Body, aval_of, trace_body, whole
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
    if not _differentiable():
        return _apply.__get__(None, cls)(*args, **kwargs)
    if issubclass(cls, BackwardHookFunction):
        raise CaptureError(
            "a module's backward hook runs in torch's own backward, which captured code does not have",
            "Register a hook on the module's output tensor, or run this part outside.",
        )
    return _CustomCall(cls, args).run()


class _CustomCall:
    """One `Function.apply`, as a `jax.custom_vjp`."""

    def __init__(self, cls: type[Function], args: tuple[Any, ...]):
        self.cls, self.args = cls, args
        self.places = [
            i for i, a in enumerate(args) if isinstance(a, Tensor) and a.device.type == "jax"
        ]
        self.tensors: list[Tensor] = [args[i] for i in self.places]
        self.context: Any = None
        self.outputs = 0
        self.single = False
        self.saved = 0
        self.attributes: list[str] = []

    def run(self) -> Any:
        """The call; its outputs are tensors whose gradient is the Function's own backward."""
        with torch.no_grad():
            forward = trace_body(self._forward, [aval_of(t) for t in self.tensors], self._what)
            residuals = forward.outputs[self.outputs :]
            dtypes = [v.aval for v in forward.jaxpr.outvars]
            cotangents = [a for i, a in enumerate(dtypes[: self.outputs]) if self._smooth(i)]
            kept = dtypes[self.outputs : self.outputs + len(residuals)]
            avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in [*kept, *cotangents]]
            backward = trace_body(self._backward, avals, f"the backward of {self.cls.__name__}")
        self.context = None
        return self._call(forward, backward)

    @property
    def _what(self) -> str:
        return f"the forward of {self.cls.__name__}"

    def _smooth(self, i: int) -> bool:
        return self.differentiable[i]

    def _forward(self, *tensors: Tensor) -> Any:
        args = list(self.args)
        for place, tensor in zip(self.places, tensors, strict=True):
            args[place] = tensor
        self.context = context = _Context(tuple(_needs(a) for a in self.args))
        if self.cls.setup_context is not Function.setup_context:
            result = self.cls.forward(*args)
            self.cls.setup_context(context, tuple(args), result)
        else:
            result = self.cls.forward(context, *args)
        self.single = not isinstance(result, tuple)
        outputs = (result,) if self.single else result
        self.outputs = len(outputs)
        refused = {id(t) for t in context.non_differentiable}
        self.differentiable = [
            id(t) not in refused and (t.is_floating_point() or t.is_complex()) for t in outputs
        ]
        self.attributes = [k for k, v in vars(context).items() if _is_ours(v)]
        saved = [t for t in context.to_save if t is not None]
        self.places_saved = [t is not None for t in context.to_save]
        self.saved = len(saved)
        return [*outputs, *saved, *(getattr(context, k) for k in self.attributes)]

    def _backward(self, *tensors: Tensor) -> list[Any]:
        context = self.context
        own = iter(tensors)
        context.saved_tensors = tuple(next(own) if t else None for t in self.places_saved)
        for name in self.attributes:
            setattr(context, name, next(own))
        given = [next(own) if smooth else None for smooth in self.differentiable]
        gradients = self.cls.backward(context, *given)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        context.saved_tensors = ()  # of this trace: they must not outlive it
        for name in self.attributes:
            delattr(context, name)
        found = []
        for place, tensor in zip(self.places, self.tensors, strict=True):
            gradient = gradients[place]
            if tensor.is_floating_point() or tensor.is_complex():
                found.append(
                    _zeros(tensor)
                    if gradient is None
                    else gradient.to(tensor.dtype).expand(tensor.shape)
                )
        return found

    def _call(self, forward: Body, backward: Body) -> Any:
        smooth_inputs = [t.is_floating_point() or t.is_complex() for t in self.tensors]
        # Nothing below may hold `self`: JAX keeps these functions, and they would keep the tensors of the trace.
        differentiable, count, trace = self.differentiable, self.outputs, tracing.current()
        assert trace is not None
        source = rng.default()
        arrays = [contiguous_array(t) for t in self.tensors]
        key = trace.read(source) if forward.draws else np.zeros(2, np.uint32)

        @jax.custom_vjp
        def custom(constants: Any, operands: Any) -> Any:
            return run(constants, operands)[0]

        def run(constants: Any, operands: Any) -> Any:
            *results, new = jax.core.eval_jaxpr(
                forward.jaxpr, constants[0], constants[2], *operands
            )
            return [*results[:count], new], results[count:]

        def save(constants: Any, operands: Any) -> Any:
            results, residuals = run(constants, operands)
            return results, (constants, residuals)

        def pull_back(kept: Any, cotangents: Any) -> Any:
            constants, residuals = kept
            given = [c.conj() for c, s in zip(cotangents, differentiable, strict=False) if s]
            *found, _ = jax.core.eval_jaxpr(
                backward.jaxpr, constants[1], constants[2], *residuals, *given
            )
            own = iter(found)
            return None, [next(own).conj() if s else None for s in smooth_inputs]

        custom.defvjp(save, pull_back)

        def flat(*operands: Any) -> tuple[list[Any], list[Any]]:
            *results, new = custom((forward.constants, backward.constants, key), list(operands))
            first = [r for r, s in zip(results, differentiable, strict=True) if s]
            rest = [r for r, s in zip(results, differentiable, strict=True) if not s]
            return first, [*rest, new]

        inputs = [i for i, s in enumerate(smooth_inputs) if s]
        bridge = Bridge(
            Compiled(flat, avals_of(arrays), inputs, name=self.cls.__name__), placement.current()
        )
        outputs, (*rest, new) = bridge([self.tensors[i] for i in inputs], arrays)
        if forward.draws:
            trace.touch(source)
            source.array = new
        first, second = iter(outputs), (bridge.wrap(a) for a in rest)
        results = tuple(next(first if s else second) for s in self.differentiable)
        return results[0] if self.single else results


class _Context(SimpleNamespace):
    """What a Function's `ctx` offers."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        super().__init__(needs_input_grad=needs_input_grad, saved_tensors=())
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.to_save = tensors
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.non_differentiable = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise CaptureError(
            "an autograd.Function writes to its input (mark_dirty)",
            "Return a new tensor from it instead.",
        )

    def set_materialize_grads(self, value: bool) -> None:
        pass  # a captured backward is given every cotangent


def _is_ours(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "jax"


def _needs(a: Any) -> bool:
    return isinstance(a, Tensor) and a.requires_grad


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)


# -- tensor hooks -------------------------------------------------------------------------------------------------


def _register_traced(self: Tensor, hook: Any) -> Any:
    trace = tracing.current()
    if not _differentiable() or trace is None or not _is_ours(self):
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
    if trace is not None and _is_ours(self):
        trace.detach(self)
    return _detach(self)


# Held while code is traced for `jax.vjp`.
intercepted = Replaced(
    (Function, "apply", classmethod(_apply_traced)),
    (Tensor, "register_hook", _register_traced),
    (Tensor, "detach_", _detach_traced),
)
