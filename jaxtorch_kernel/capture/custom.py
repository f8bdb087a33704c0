"""`autograd.Function` inside code that `jax.vjp` differentiates: a `jax.custom_vjp`.

Forward and backward are traced once, immediately, into jaxprs (`bodies.py`), so that no torch code runs later when JAX
differentiates. The forward body returns the outputs, then the tensors that the Function saved on its `ctx`. These are
the residuals, and the first inputs of the backward body. A backward that distinguishes None cotangents
(`set_materialize_grads(False)`) is traced once for each combination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import torch
from jax.core import ShapedArray
from jax.custom_derivatives import SymbolicZero
from torch.autograd.function import Function

from ..programs.trees import Tree, is_device_tensor, split
from ..storage.buffer import buffer_of
from .bodies import Body, Bound, aval_of, call_bodies, trace_body
from .errors import CaptureError
from .flow import Flow

Tensor = torch.Tensor
Arrays = list[jax.Array]
Given = tuple[bool, ...]  # for each differentiable output, whether it has a cotangent
# The most differentiable outputs of a Function whose backward is traced once for each combination of cotangents.
_MOST_CASES = 4


class CustomCall:
    """One `Function.apply`, as a `jax.custom_vjp`.

    Attributes:
        args: the arguments.
        indices, tensors: those that are tensors of the device.
        single: whether the forward returns one value and no tuple.
        values: what the forward returns, with None for tensors of the device.
        output_indices: the indices of these tensors, the outputs.
        differentiable: for each output, whether it has a gradient.
        dirty: outputs that are tensors of the call, which the forward wrote to: output -> tensor.
        saved: the tree of (saved tensors, attributes of the context).
        has_gradient: for each case of the backward, the tensors that it returns a gradient for.
        flow: for each output, the tensors that a gradient of it flows to.
        recorded: for each output, whether torch's graph records a gradient.
        node: the node of the outputs in torch's graph; None if no output is recorded.
    """

    def __init__(self, cls: type[Function], args: tuple[object, ...]):
        self.cls, self.args = cls, args
        self.indices = [i for i, a in enumerate(args) if is_device_tensor(a)]
        self.tensors = [a for a in args if is_device_tensor(a)]
        self.context: _Context
        self.single = False
        self.values: list[object] = []
        self.output_indices: list[int] = []
        self.differentiable: list[bool] = []
        self.dirty: dict[int, int] = {}
        self.saved: Tree
        self.has_gradient: dict[Given, list[bool]] = {}
        self.flow: list[Flow] = []
        self.recorded: list[bool] = []
        self.node: Any = None

    def run(self) -> object:
        """Make the call; the gradient of its outputs is the Function's own backward."""
        name = self.cls.__name__
        with torch.no_grad():
            avals = [aval_of(t) for t in self.tensors]
            forward = trace_body(self._forward, avals, f"the forward of {name}")
            results = [v.aval for v in forward.jaxpr.outvars]
            avals = [
                jax.ShapeDtypeStruct(a.shape, a.dtype)
                for a in results
                if isinstance(a, ShapedArray)
            ]
            cotangents = [a for a, s in zip(avals, self.differentiable, strict=False) if s]
            saved = avals[len(self.differentiable) : len(forward.outputs)]
            backward = {
                given: trace_body(
                    lambda *tensors, given=given: self._backward(given, tensors),
                    [*saved, *(a for a, g in zip(cotangents, given, strict=True) if g)],
                    f"the backward of {name}",
                )
                for given in self._cases()
            }
        del self.context
        return self._returned(self._call(forward, backward))

    def _cases(self) -> list[Given]:
        count = sum(self.differentiable)
        if self.context.declared.materialize or count < 2:
            return [(True,) * count] if count else []
        if count > _MOST_CASES:
            raise CaptureError(
                f"{self.cls.__name__} has {count} differentiable outputs and gets None for undefined gradients "
                f"(set_materialize_grads(False)): captured code supports this for at most {_MOST_CASES} outputs",
                "Let torch materialize the gradients, mark outputs as non-differentiable, or run this part outside "
                "the captured code.",
            )
        return [given for given in product((True, False), repeat=count) if any(given)]

    # -- what is traced -----------------------------------------------------------------------------------------------

    def _forward(self, *tensors: Tensor) -> list[Tensor]:
        args = list(self.args)
        for index, tensor in zip(self.indices, tensors, strict=True):
            args[index] = tensor
        before = [buffer_of(t).array for t in tensors]
        needed = tuple(isinstance(a, Tensor) and a.requires_grad for a in self.args)
        self.context = context = _Context(needed)
        if self.cls.setup_context is not Function.setup_context:
            result = self.cls.forward(*args)
            self.cls.setup_context(context, tuple(args), result)
        else:
            result = self.cls.forward(context, *args)
        self.single = not isinstance(result, tuple)
        results = (result,) if self.single else result
        self.values = [None if is_device_tensor(t) else t for t in results]
        self.output_indices = [i for i, t in enumerate(results) if is_device_tensor(t)]
        outputs = [t for t in results if is_device_tensor(t)]
        declared = context.declared
        constant = {id(t) for t in declared.non_differentiable}
        self.differentiable = [
            id(t) not in constant and (t.is_floating_point() or t.is_complex()) for t in outputs
        ]
        written = [
            t for t, array in zip(tensors, before, strict=True) if buffer_of(t).array is not array
        ]
        self._check_written(written, declared.dirty, outputs)
        self.dirty = {
            k: i
            for k, output in enumerate(outputs)
            for i, t in enumerate(tensors)
            if output is t and any(t is marked for marked in declared.dirty)
        }
        saved, self.saved = split((declared.saved, context.attributes()), is_device_tensor)
        return [*outputs, *saved]

    def _check_written(
        self, written: list[Tensor], dirty: Sequence[Tensor], outputs: list[Tensor]
    ) -> None:
        if any(all(t is not marked for marked in dirty) for t in written):
            raise CaptureError(
                f"the forward of {self.cls.__name__} writes to an input that it does not mark as dirty",
                "Call ctx.mark_dirty(x) and return it, or return a new tensor.",
            )
        if any(all(marked is not result for result in outputs) for marked in dirty):
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as output. The inputs that "
                "are modified inplace must all be outputs of the Function."
            )

    def _backward(self, given: Given, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        context = self.context
        count = len(self.saved.indices)
        context.saved_tensors, attributes = self.saved.filled(tensors[:count])
        context.set(attributes)
        del attributes
        passed, is_given = iter(tensors[count:]), iter(given)
        cotangents: list[Tensor | None] = [None] * len(self.values)
        for index, is_differentiable in zip(self.output_indices, self.differentiable, strict=True):
            if is_differentiable and next(is_given):
                cotangents[index] = context.declared.cotangent(index, next(passed))
        is_boxed = getattr(
            self.cls, "boxed_grads_call", False
        )  # the backward may free each of a list
        gradients = self.cls.backward(context, *([cotangents] if is_boxed else cotangents))
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        context.saved_tensors = ()  # tracers of this trace, which must not outlive it
        context.set({})
        count = len(self.args)
        if len(gradients) < count or any(g is not None for g in gradients[count:]):
            raise RuntimeError(
                f"function {self.cls.__name__}Backward returned an incorrect number of gradients (expected {count}, "
                f"got {len(gradients)})"
            )
        pairs = [(gradients[p], t) for p, t in zip(self.indices, self.tensors, strict=True)]
        self.has_gradient[given] = [g is not None and t.requires_grad for g, t in pairs]
        return [
            g.to(t.dtype).sum_to_size(t.shape)
            for (g, t), has_gradient in zip(pairs, self.has_gradient[given], strict=True)
            if has_gradient
        ]

    # -- the call -----------------------------------------------------------------------------------------------------

    def _flow(self) -> list[Flow]:
        """The inputs that the gradient of each output flows to."""
        flow, count = [], sum(self.differentiable)
        numbers = iter(range(count))
        for is_differentiable in self.differentiable:
            reached: list[bool] = []
            if is_differentiable:
                number = next(numbers)
                alone = tuple(i == number for i in range(count))
                reached = self.has_gradient.get(alone) or next(iter(self.has_gradient.values()))
            flow.append(Flow(frozenset(i for i, r in enumerate(reached) if r), frozenset()))
        return flow

    def _call(self, forward: Body, backward: dict[Given, Body]) -> list[Tensor]:
        """The outputs."""
        # JAX keeps this function, so it must not refer to `self`, which refers to tensors of the trace.
        custom = _with_backward(forward, backward, self.differentiable, self.has_gradient)
        constants = forward.constants, {given: b.constants for given, b in backward.items()}

        def build(_: list[Bound], key: jax.Array, arrays: Arrays) -> tuple[Arrays, jax.Array]:
            *results, key = custom((*constants, key), arrays)
            return results, key

        # A tensor that is written to becomes the node's output. As the node's input too, it would keep itself alive.
        written = self.dirty.values()
        tensors = [t.clone() if i in written else t for i, t in enumerate(self.tensors)]
        self.flow = self._flow()
        results = call_bodies(
            self.cls.__name__, build, tensors, [forward], self.differentiable, self.flow
        )
        self.recorded = [r.requires_grad for r in results]
        self.node = next((r.grad_fn for r in results if r.requires_grad), None)
        return results

    def _returned(self, results: list[Tensor]) -> object:
        """What `apply` returns: an input that was written to is returned itself, with its new value."""
        for k, i in self.dirty.items():
            results[k] = self.tensors[i].copy_(results[k])
        values = list(self.values)
        for index, result in zip(self.output_indices, results, strict=True):
            values[index] = result
        return values[0] if self.single else tuple(values)


def _with_backward(
    forward: Body,
    backward: dict[Given, Body],
    differentiable: list[bool],
    has_gradient: Mapping[Given, list[bool]],
) -> Callable[[_Constants, Arrays], Arrays]:
    """The JAX function of (constants, operands) -> (results and the next random key)."""
    count = len(differentiable)

    @jax.custom_vjp
    def custom(constants: _Constants, operands: Arrays) -> Arrays:
        return run(constants, operands)[0]

    def run(constants: _Constants, operands: Arrays) -> tuple[Arrays, Arrays]:
        *results, new = jax.core.eval_jaxpr(forward.jaxpr, constants[0], constants[2], *operands)
        return [*results[:count], new], results[count:]

    # With `symbolic_zeros`, JAX wraps each array in an object that also tells whether it is differentiated.
    def save(constants: Any, operands: Any) -> tuple[Arrays, tuple[_Constants, Arrays]]:
        constants, operands = jax.tree.map(
            lambda p: p.value, (constants, operands), is_leaf=_is_primal
        )
        results, residuals = run(constants, operands)
        return results, (constants, residuals)

    def pull_back(
        saved: tuple[_Constants, Arrays], cotangents: list[jax.Array | SymbolicZero]
    ) -> tuple[None, list[jax.Array | None] | None]:
        constants, residuals = saved
        outputs = [c for c, s in zip(cotangents, differentiable, strict=False) if s]
        given = tuple(not isinstance(c, SymbolicZero) for c in outputs)
        if not any(given):
            return None, None
        if given not in backward:  # the Function gets zeros for undefined gradients: its one case
            given = (True,) * len(outputs)
        arrays = [
            jax.numpy.zeros(c.shape, c.dtype) if isinstance(c, SymbolicZero) else c
            for c, g in zip(outputs, given, strict=True)
            if g
        ]
        body = backward[given]
        *gradients, _ = jax.core.eval_jaxpr(
            body.jaxpr,
            constants[1][given],
            constants[2],
            *residuals,
            *(c.conj() for c in arrays),
        )
        rest = iter(gradients)
        return None, [next(rest).conj() if f else None for f in has_gradient[given]]

    custom.defvjp(save, pull_back, symbolic_zeros=True)
    return custom


# The constants of the forward, those of each case of the backward, the random key.
_Constants = tuple[Arrays, dict[Given, Arrays], jax.Array]


def _is_primal(leaf: object) -> bool:
    return hasattr(leaf, "perturbed")


@dataclass
class _Declared:
    """What a Function declared by calling methods of its `ctx`."""

    saved: tuple[Tensor | None, ...] = ()
    dirty: tuple[Tensor, ...] = ()
    non_differentiable: tuple[Tensor, ...] = ()
    materialize: bool = True
    cotangent_dtypes: tuple[torch.dtype | None, ...] = ()

    def cotangent(self, index: int, cotangent: Tensor) -> Tensor:
        """The cotangent of a returned value, in the dtype that the Function wants."""
        dtype = self.cotangent_dtypes[index] if self.cotangent_dtypes else None
        return cotangent if dtype is None else cotangent.to(dtype)


class _Context:
    """The `ctx` of a Function: torch's methods, and any attributes that the Function sets."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.declared = _Declared()
        self._reserved = set(vars(self)) | {"_reserved"}

    def attributes(self) -> dict[str, object]:
        """The attributes that the Function has set."""
        return {name: value for name, value in vars(self).items() if name not in self._reserved}

    def set(self, attributes: dict[str, object]) -> None:
        """Replace all attributes that the Function has set by these."""
        for name in self.attributes():
            delattr(self, name)
        vars(self).update(attributes)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.declared.saved = self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        pass  # for `jvp`, which captured code does not run

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.declared.non_differentiable = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        self.declared.dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.declared.materialize = value

    def set_output_grad_dtype(self, *dtypes: torch.dtype | None) -> None:
        self.declared.cotangent_dtypes = dtypes

    @property
    def input_grad_buffers(self) -> tuple[None, ...]:
        """No gradient of an input has been added up before: torch then takes what the backward returns."""
        return (None,) * len(self.needs_input_grad)
