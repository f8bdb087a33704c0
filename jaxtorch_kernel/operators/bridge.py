"""A JAX function called with torch tensors: torch's autograd sees one node, whose gradient comes from `jax.vjp`.

Outside a trace the function's compiled programs run (`programs/compiled.py`). Inside a trace it is inlined, so that
everything in the function (a Pallas kernel, a sharding constraint, a custom gradient) is preserved in the captured
program.

Second derivatives work in the same way: the pullback is a JAX function of the primals and the cotangents, and is
called through the same bridge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch

from ..base import torch_private as private
from ..dispatch.read import contiguous_array
from ..dispatch.results import Fresh, wrap_result
from ..programs import tracing, watching
from ..programs.compiled import CompiledFunction
from ..programs.errors import explain
from ..storage.buffer import buffer_of, spec_of
from ..storage.dtypes import to_torch
from ..storage.layout import plan

Tensor = torch.Tensor
Layouts = dict[int, tuple[Any, Any]]


def result_leaf(array: Any, where: Any) -> Fresh:
    """The layout of a tensor over this output."""
    shape = tuple(array.shape)
    return Fresh(shape, to_torch(array.dtype), None, spec_of(array.dtype, shape, where))


class Bridge:
    """A `CompiledFunction` with tensors as its inputs and outputs.

    Args:
        compiled: the JAX function for one signature.
        where: placement of the outputs.
        layouts: size and stride of those of `compiled.inputs` whose array is their buffer's, in memory order, and not
            of their tensor's shape. So is their gradient, until it is given theirs.
        flow: for each differentiable output, the places among `compiled.inputs` that gradients of it flow to; all by
            default. What no gradient flows to gets none, where JAX would give it zeros.
    """

    def __init__(
        self,
        compiled: CompiledFunction,
        where: Any,
        layouts: Layouts | None = None,
        flow: Sequence[frozenset[int]] | None = None,
    ):
        self.compiled = compiled
        self.layouts = layouts or {}
        everything = range(len(compiled.inputs))
        self.flow = (
            None if flow is None or all(f.issuperset(everything) for f in flow) else list(flow)
        )
        self.name = compiled.name
        self.where = where
        self.leaves: list[Fresh] = []
        self.other_leaves: dict[int, Fresh] = {}
        self._pullback: Bridge | None = None

    def __call__(
        self, tensors: Sequence[Tensor], arrays: Sequence[Any]
    ) -> tuple[Sequence[Tensor], list[Any]]:
        """Tensors for the differentiable outputs, arrays for the others.

        Args:
            tensors: those whose gradient may be requested, one for each of `compiled.inputs`.
            arrays: all inputs.
        """
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return self.record(tensors, arrays)
        return self.run(arrays)

    def record(
        self, tensors: Sequence[Tensor], arrays: Sequence[Any]
    ) -> tuple[Sequence[Tensor], list[Any]]:
        """As a call, with a node in torch's graph."""
        others: list[Any] = []
        return _apply(self, arrays, others, *tensors), others

    def run(self, arrays: Sequence[Any]) -> tuple[Sequence[Tensor], list[Any]]:
        """As a call, without a graph."""
        compiled = self.compiled
        if tracing.depth and tracing.active():
            outs, others = compiled.function(*arrays)
            return [self.wrap(o) for o in outs], others
        try:
            forward = compiled.forward or compiled.compile()
            watching.launching(compiled.records[""])
            done = forward(*arrays)
        except jax.errors.JaxRuntimeError as error:
            raise explain(error, self.name) from None
        compiled.records[""].calls += 1
        count = compiled.outputs
        return (self.wrap_all(done[:count]), done[count:]) if count else ((), done)

    def wrap(self, array: Any) -> Tensor:
        """A tensor over one output."""
        tensor = wrap_result(result_leaf(array, self.where), array, self)
        trace = tracing.current()
        if trace is not None:
            trace.add_created(tensor.untyped_storage().buffer)  # type: ignore[attr-defined]
        return tensor

    def wrap_all(self, arrays: Sequence[Any]) -> list[Tensor]:
        """Tensors over the outputs of a compiled program: their look is known from the first call."""
        if not self.leaves:
            self.leaves = [result_leaf(a, self.where) for a in arrays]
        return [wrap_result(leaf, a, self) for leaf, a in zip(self.leaves, arrays, strict=True)]

    def wrap_other(self, others: Sequence[Any], position: int) -> Tensor:
        """A tensor over an output that is not differentiable."""
        leaf = self.other_leaves.get(position)
        if leaf is None:
            leaf = self.other_leaves[position] = result_leaf(others[position], self.where)
        return wrap_result(leaf, others[position], self)

    def save(self, ctx: Any) -> None:
        """Let torch save what the backward needs, and so hand it to `saved_tensors_hooks`."""
        arrays, ctx.saved = jax.tree.flatten((ctx.residuals, ctx.pullback))
        ctx.residuals = ctx.pullback = None
        ctx.save_for_backward(*map(self.wrap, arrays))

    def kept(self, ctx: Any) -> Any:
        """(residuals, pullback) of a forward pass, one of them None or both."""
        if ctx.saved is None:
            return ctx.residuals, ctx.pullback
        return jax.tree.unflatten(ctx.saved, map(contiguous_array, ctx.saved_tensors))

    def pullback(self) -> Bridge:
        """The bridge of (all inputs, cotangents) -> cotangents of the inputs, for a second derivative."""
        if self._pullback is None:
            first = self.compiled
            count = len(first.avals)

            def function(*operands: Any) -> tuple[list[Any], list[Any]]:
                arrays, cotangents = operands[:count], operands[count:]
                return _pulled_back(_forward(first, arrays)[1], cotangents), []

            avals = [
                *first.avals,
                *(jax.ShapeDtypeStruct(x.size, x.spec.dtype) for x in self.leaves),
            ]
            inputs = [*first.inputs, *range(count, count + len(self.leaves))]
            second = CompiledFunction(
                function, avals, inputs, name=f"{self.name} (pullback)", cause=first.cause
            )
            self._pullback = Bridge(second, self.where, self.layouts)
        return self._pullback

    def wanted(self, cotangents: Sequence[Tensor | None], needed: Sequence[bool]) -> list[bool]:
        """Which inputs get a gradient: those that need one and that gradients flow to from what has a cotangent."""
        given = [i for i, c in enumerate(cotangents) if c is not None]
        if not given:
            return [False] * len(needed)
        if self.flow is None:
            return list(needed)
        reached = frozenset().union(*(self.flow[i] for i in given))
        return [need and i in reached for i, need in enumerate(needed)]


def _forward(compiled: CompiledFunction, arrays: Sequence[Any]) -> tuple[Any, Any, Any]:
    """(differentiable outputs, pullback, others)."""
    primals = [arrays[i] for i in compiled.inputs]
    return jax.vjp(compiled.of_inputs(arrays), *primals, has_aux=True)


def _pulled_back(pullback: Any, cotangents: Sequence[Any]) -> list[Any]:
    """The inputs' cotangents. Those of torch are the conjugates of JAX's."""
    return [g.conj() for g in pullback([c.conj() for c in cotangents])]


class _Node(torch.autograd.Function):
    """One node of torch's graph. Its first three arguments are not tensors."""

    @staticmethod
    def forward(ctx: Any, bridge: Bridge, arrays: Any, box: list[Any], *tensors: Tensor) -> Any:
        compiled = bridge.compiled
        ctx.bridge, ctx.arrays = bridge, arrays
        # Not `save_for_backward`: what is differentiated are the arrays of now, which no later write can change.
        ctx.tensors = tensors
        ctx.set_materialize_grads(False)
        ctx.residuals = ctx.pullback = ctx.saved = None
        trace = tracing.current()
        if trace is not None:
            if trace.differentiable:  # by JAX, which must see the function itself
                outs, others = compiled.function(*arrays)
            else:  # by torch's backward in this very trace: the forward pass must not be computed twice
                outs, ctx.pullback, others = _forward(compiled, arrays)
            outputs = [bridge.wrap(o) for o in outs]
            bridge.leaves = [result_leaf(o, bridge.where) for o in outs]
        else:
            try:
                done, ctx.residuals = compiled.run_saving(arrays)
            except jax.errors.JaxRuntimeError as error:
                raise explain(error, bridge.name) from None
            outputs = bridge.wrap_all(done[: compiled.outputs])
            others = done[compiled.outputs :]
        if private.saving_hooks() is not None:
            bridge.save(ctx)
        box.extend(others)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        bridge: Bridge = ctx.bridge
        tensors = ctx.tensors
        wanted = bridge.wanted(cotangents, ctx.needs_input_grad[3:])
        if not any(wanted):
            return (None,) * (3 + len(tensors))
        given = [_or_zeros(c, leaf) for c, leaf in zip(cotangents, bridge.leaves, strict=True)]
        if torch.is_grad_enabled():
            found: Any = _twice(bridge, ctx.arrays, tensors, given)
        else:
            residuals, pullback = bridge.kept(ctx)
            arrays = [contiguous_array(c) for c in given]
            if residuals is not None:
                found = bridge.compiled.pull_back(residuals, arrays)
            else:
                pullback = pullback or _forward(bridge.compiled, ctx.arrays)[1]
                found = _pulled_back(pullback, arrays)
            found = [
                bridge.wrap(g) if want else None for g, want in zip(found, wanted, strict=True)
            ]
        gradients: list[Any] = [g if want else None for g, want in zip(found, wanted, strict=True)]
        for i, (size, stride) in bridge.layouts.items():
            if gradients[i] is not None:
                gradients[i] = gradients[i].as_strided(size, stride)
        return (None, None, None, *gradients)


def _twice(
    bridge: Bridge, arrays: Sequence[Any], tensors: Sequence[Tensor], cotangents: list[Tensor]
) -> Sequence[Tensor]:
    """The gradients as differentiable tensors."""
    both = [*arrays, *(contiguous_array(c) for c in cotangents)]
    gradients, _ = bridge.pullback()([*tensors, *cotangents], both)
    return gradients


# Not `Function.apply`, which looks at every tensor for a wrapper of an ended `torch.func`; none gets here.
_apply: Any = super(torch.autograd.Function, _Node).apply


def _or_zeros(cotangent: Tensor | None, leaf: Fresh) -> Tensor:
    if cotangent is not None:
        return cotangent
    return torch.zeros(leaf.size, dtype=leaf.dtype, device="jax")


def layouts(tensors: Sequence[Tensor]) -> Layouts:
    """Size and stride of the tensors that look at their buffer other than as it is: transposed, channels last."""
    return {
        i: (t.shape, t.stride())
        for i, t in enumerate(tensors)
        if plan(buffer_of(t).spec, t.dtype, tuple(t.shape), t.stride()) is not None
    }


def avals_of(arrays: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """Abstract values of arrays or tracers, with the placement of the former."""
    return [
        jax.ShapeDtypeStruct(a.shape, a.dtype)
        if isinstance(a, jax.core.Tracer)
        else jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
        for a in arrays
    ]
