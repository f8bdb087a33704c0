"""`autograd.Function` inside code that `jax.vjp` differentiates: a `jax.custom_vjp`.

Forward and backward are traced once, immediately, into jaxprs (`bodies.py`), so that no torch code runs later when JAX
differentiates. A backward that distinguishes None cotangents (`set_materialize_grads(False)`) is traced once for each
combination.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import torch
from jax.custom_derivatives import SymbolicZero
from torch.autograd.function import Function

from ..base.torch_private import pytree
from ..operators.bridge import Bridge, avals_of
from ..programs import rng, tracing
from ..programs.compiled import Compiled
from ..storage import placement
from ..storage.buffer import buffer_of
from .bodies import Body, aval_of, read, trace_body
from .errors import CaptureError

Tensor = torch.Tensor
Given = tuple[bool, ...]  # of the differentiable outputs, which have a cotangent
_MOST_CASES = 4  # differentiable outputs of a Function whose backward is traced for each case


class CustomCall:
    """One `Function.apply`, as a `jax.custom_vjp`."""

    def __init__(self, cls: type[Function], args: tuple[Any, ...]):
        self.cls, self.args = cls, args
        self.places = [i for i, a in enumerate(args) if is_ours(a)]
        self.tensors: list[Tensor] = [args[i] for i in self.places]
        self.context: Any = None
        self.single = False
        self.values: list[Any] = []  # of the outputs, for those that are no tensors
        self.places_out: list[int] = []  # of those that are
        self.differentiable: list[bool] = []  # those
        self.dirty: dict[int, int] = {}  # outputs that are inputs, written to
        self.saved: list[bool] = []  # of what was saved: whether it is a tensor of the device
        self.attributes: list[Any] = []  # leaves of what the context has besides
        self.structure: Any = None
        self.found: dict[Given, list[bool]] = {}  # which inputs a backward has a gradient for

    def run(self) -> Any:
        """The call; its outputs are tensors whose gradient is the Function's own backward."""
        name = self.cls.__name__
        with torch.no_grad():
            avals = [aval_of(t) for t in self.tensors]
            forward = trace_body(self._forward, avals, f"the forward of {name}")
            results = [v.aval for v in forward.jaxpr.outvars]
            own = [a for a, s in zip(results, self.differentiable, strict=False) if s]
            kept = results[len(self.differentiable) : len(forward.outputs)]
            backward = {
                given: trace_body(
                    lambda *tensors, given=given: self._backward(given, tensors),
                    [
                        jax.ShapeDtypeStruct(a.shape, a.dtype)
                        for a in [*kept, *(a for a, g in zip(own, given, strict=True) if g)]
                    ],
                    f"the backward of {name}",
                )
                for given in self._cases()
            }
        self.context = None
        return self._returned(self._call(forward, backward))

    def _cases(self) -> list[Given]:
        count = sum(self.differentiable)
        if self.context.said.materialize or count < 2:
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

    def _forward(self, *tensors: Tensor) -> Any:
        args = list(self.args)
        for place, tensor in zip(self.places, tensors, strict=True):
            args[place] = tensor
        before = [buffer_of(t).array for t in tensors]
        needed = tuple(isinstance(a, Tensor) and a.requires_grad for a in self.args)
        self.context = context = _Context(needed)
        if self.cls.setup_context is not Function.setup_context:
            result = self.cls.forward(*args)
            self.cls.setup_context(context, tuple(args), result)
        else:
            result = self.cls.forward(context, *args)
        self.single = not isinstance(result, tuple)
        outputs = (result,) if self.single else result
        self.values = [None if is_ours(t) else t for t in outputs]
        self.places_out = [i for i, t in enumerate(outputs) if is_ours(t)]
        outputs = [t for t in outputs if is_ours(t)]
        said = context.said
        refused = {id(t) for t in said.non_differentiable}
        self.differentiable = [
            id(t) not in refused and (t.is_floating_point() or t.is_complex()) for t in outputs
        ]
        written = [
            t for t, array in zip(tensors, before, strict=True) if buffer_of(t).array is not array
        ]
        self._check_written(written, said.dirty, outputs)
        self.dirty = {
            k: i
            for k, result in enumerate(outputs)
            for i, t in enumerate(tensors)
            if result is t and any(t is marked for marked in said.dirty)
        }
        self.saved = [is_ours(t) for t in said.saved]
        self.attributes, self.structure = pytree.tree_flatten(context.attributes())
        kept = [t for t in (*said.saved, *self.attributes) if is_ours(t)]
        return [*outputs, *kept]

    def _check_written(self, written: list[Tensor], dirty: Any, outputs: Any) -> None:
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

    def _backward(self, given: Given, tensors: tuple[Tensor, ...]) -> list[Any]:
        context = self.context
        own = iter(tensors)
        said = context.said
        context.saved_tensors = tuple(
            next(own) if s else t for s, t in zip(self.saved, said.saved, strict=True)
        )
        values = [next(own) if is_ours(leaf) else leaf for leaf in self.attributes]
        context.set(pytree.tree_unflatten(values, self.structure))
        del values
        asked = iter(given)
        cotangents: list[Any] = [None] * len(self.values)
        for place, is_differentiable in zip(self.places_out, self.differentiable, strict=True):
            if is_differentiable and next(asked):
                cotangents[place] = next(own)
        gradients = self.cls.backward(context, *cotangents)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        context.saved_tensors = ()  # of this trace: they must not outlive it
        context.set({})
        count = len(self.args)
        if len(gradients) < count or any(g is not None for g in gradients[count:]):
            raise RuntimeError(
                f"function {self.cls.__name__}Backward returned an incorrect number of gradients (expected {count}, "
                f"got {len(gradients)})"
            )
        pairs = [(gradients[p], t) for p, t in zip(self.places, self.tensors, strict=True)]
        self.found[given] = [g is not None and t.requires_grad for g, t in pairs]
        return [
            g.to(t.dtype).sum_to_size(t.shape)
            for (g, t), found in zip(pairs, self.found[given], strict=True)
            if found
        ]

    # -- the call -----------------------------------------------------------------------------------------------------

    def _flow(self) -> list[frozenset[int]]:
        """For each differentiable output, the inputs that get a gradient where it has one."""
        places = [i for i, t in enumerate(self.tensors) if t.requires_grad]
        flow = []
        for k in range(sum(self.differentiable)):
            alone = tuple(i == k for i in range(sum(self.differentiable)))
            found = self.found.get(alone) or next(iter(self.found.values()))
            flow.append(frozenset(n for n, i in enumerate(places) if found[i]))
        return flow

    def _call(self, forward: Body, backward: dict[Given, Body]) -> list[Tensor]:
        """The outputs."""
        differentiable, trace = self.differentiable, tracing.current()
        assert trace is not None
        source = rng.default()
        arrays = [read(t) for t in self.tensors]
        key = trace.read(source) if forward.draws else np.zeros(2, np.uint32)
        # It must not hold `self`: JAX keeps it, and it would keep the tensors of the trace.
        custom = _with_backward(forward, backward, differentiable, self.found)
        constants = forward.constants, {given: b.constants for given, b in backward.items()}, key

        def flat(*operands: Any) -> tuple[list[Any], list[Any]]:
            *results, new = custom(constants, list(operands))
            first = [r for r, s in zip(results, differentiable, strict=True) if s]
            rest = [r for r, s in zip(results, differentiable, strict=True) if not s]
            return first, [*rest, new]

        inputs = [i for i, t in enumerate(self.tensors) if t.requires_grad]
        compiled = Compiled(flat, avals_of(arrays), inputs, name=self.cls.__name__)
        bridge = Bridge(compiled, placement.current(), flow=self._flow())
        # One that is written to may not be the node's own input: it becomes its output, and would keep itself alive.
        written = self.dirty.values()
        tensors = [t.clone() if i in written else t for i, t in enumerate(self.tensors)]
        outputs, (*rest, new) = bridge([tensors[i] for i in inputs], arrays)
        if forward.draws:
            trace.touch(source)
            source.array = new
        first, second = iter(outputs), (bridge.wrap(a) for a in rest)
        return [next(first if s else second) for s in differentiable]

    def _returned(self, results: list[Tensor]) -> Any:
        """What `apply` returns: an input that was written to is itself, with its new value."""
        for k, i in self.dirty.items():
            results[k] = self.tensors[i].copy_(results[k])
        values = list(self.values)
        for place, result in zip(self.places_out, results, strict=True):
            values[place] = result
        return values[0] if self.single else tuple(values)


def _with_backward(
    forward: Body,
    backward: dict[Given, Body],
    differentiable: list[bool],
    found: dict[Given, list[bool]],
) -> Any:
    """The JAX function of (constants, operands) -> (results and the next random key)."""
    count = len(differentiable)

    @jax.custom_vjp
    def custom(constants: Any, operands: Any) -> Any:
        return run(constants, operands)[0]

    def run(constants: Any, operands: Any) -> Any:
        *results, new = jax.core.eval_jaxpr(forward.jaxpr, constants[0], constants[2], *operands)
        return [*results[:count], new], results[count:]

    def save(constants: Any, operands: Any) -> Any:
        constants, operands = jax.tree.map(
            lambda p: p.value, (constants, operands), is_leaf=_is_primal
        )
        results, residuals = run(constants, operands)
        return results, (constants, residuals)

    def pull_back(kept: Any, cotangents: Any) -> Any:
        constants, residuals = kept
        own = [c for c, s in zip(cotangents, differentiable, strict=False) if s]
        given = tuple(not isinstance(c, SymbolicZero) for c in own)
        if not any(given):
            return None, None
        if given not in backward:  # its only case is that all are given
            own = [
                jax.numpy.zeros(c.shape, c.dtype) if isinstance(c, SymbolicZero) else c for c in own
            ]
            given = (True,) * len(own)
        body = backward[given]
        *gradients, _ = jax.core.eval_jaxpr(
            body.jaxpr,
            constants[1][given],
            constants[2],
            *residuals,
            *(c.conj() for c, g in zip(own, given, strict=True) if g),
        )
        rest = iter(gradients)
        return None, [next(rest).conj() if f else None for f in found[given]]

    custom.defvjp(save, pull_back, symbolic_zeros=True)
    return custom


def _is_primal(leaf: Any) -> bool:
    return hasattr(leaf, "perturbed")


class _Context:
    """What a Function's `ctx` offers."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.said = SimpleNamespace(saved=(), dirty=(), non_differentiable=(), materialize=True)
        self._own = set(vars(self)) | {"_own"}

    def attributes(self) -> dict[str, Any]:
        """What the Function has put here."""
        return {name: value for name, value in vars(self).items() if name not in self._own}

    def set(self, attributes: dict[str, Any]) -> None:
        """Let these be all that the Function has put here."""
        for name in self.attributes():
            delattr(self, name)
        vars(self).update(attributes)

    def save_for_backward(self, *tensors: Any) -> None:
        self.said.saved = self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass  # for `jvp`, which captured code does not run

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.said.non_differentiable = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        self.said.dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.said.materialize = value


def is_ours(value: Any) -> bool:
    """Whether a value is a tensor of the device."""
    return isinstance(value, Tensor) and value.device.type == "jax"
