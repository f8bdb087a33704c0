"""A JAX function called with torch tensors: torch's autograd sees one node, whose gradient comes from `jax.vjp`.

Outside a trace the function's compiled programs run (`programs/compiled.py`). Inside a trace it is inlined, so that
everything in the function (a Pallas kernel, a sharding constraint, a custom gradient) is preserved in the captured
program.

Second derivatives work in the same way: the pullback is a JAX function of the primals and the cotangents, and is
called through the same bridge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import torch
from jax.sharding import Sharding

from ..base import torch_private as private
from ..base.jax_private import FAILURES
from ..dispatch.read import contiguous_array
from ..dispatch.results import Fresh, wrap_result
from ..programs import tracing, watching
from ..programs.compiled import CompiledFunction
from ..programs.errors import explain
from ..storage import placement
from ..storage.buffer import buffer_of, spec_of
from ..storage.dtypes import to_torch
from ..storage.layout import is_array
from .node import Context, apply_unwrapped

Tensor = torch.Tensor
Layouts = dict[int, tuple[torch.Size, tuple[int, ...]]]
Pullback = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]


def result_leaf(array: jax.Array, sharding: Sharding) -> Fresh:
    """The layout of a tensor over this output."""
    shape = tuple(array.shape)
    return Fresh(shape, to_torch(array.dtype), None, spec_of(array.dtype, shape, sharding))


class _Context(Context, Protocol):
    """The node of a call.

    Attributes:
        arrays: all inputs. Not `save_for_backward`: the gradient is that of these arrays, which no write can change.
            None once they are freed, like torch's saved tensors, with the other attributes below.
        tensors: the inputs that may need a gradient.
        residuals: from the forward program, for the backward program; None inside a trace.
        pullback: of `jax.vjp`; None unless torch computes gradients inside a trace.
        saved: the structure of residuals and pullback, if torch saves their arrays; None if they are above.
    """

    arrays: Sequence[jax.Array] | None
    tensors: Sequence[Tensor]
    residuals: Sequence[jax.Array] | None
    pullback: Pullback | None
    saved: jax.tree_util.PyTreeDef | None


class Bridge:
    """A `CompiledFunction` with tensors as its inputs and outputs.

    Args:
        compiled: the JAX function for one signature.
        sharding: of the outputs.
        layouts: size and stride of those of `compiled.inputs` that are passed as their buffer's array, in memory order.
            Their gradients come in memory order too, and are given this layout.
        flow: for each differentiable output, the indices among `compiled.inputs` that its gradient flows to; by default
            all of them. An input that no gradient flows to gets none, whereas JAX would give it zeros.
    """

    def __init__(
        self,
        compiled: CompiledFunction,
        sharding: Sharding,
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
        # That of an input, on a mesh of one device, has its rank; the outputs have others.
        self.sharding = placement.replicated(sharding)
        self.leaves: list[Fresh] = []
        self.other_leaves: dict[int, Fresh] = {}
        self._pullback: Bridge | None = None

    def __call__(
        self, tensors: Sequence[Tensor], arrays: Sequence[jax.Array]
    ) -> tuple[Sequence[Tensor], list[jax.Array]]:
        """Tensors for the differentiable outputs, arrays for the others.

        Args:
            tensors: those whose gradient may be requested, one for each of `compiled.inputs`.
            arrays: all inputs.
        """
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return self.record(tensors, arrays)
        return self.run(arrays)

    def record(
        self, tensors: Sequence[Tensor], arrays: Sequence[jax.Array]
    ) -> tuple[Sequence[Tensor], list[jax.Array]]:
        """As a call, with a node in torch's graph."""
        others: list[jax.Array] = []
        with private.outside_transforms():
            return apply_unwrapped(self, (arrays, others), *tensors), others

    def run(self, arrays: Sequence[jax.Array]) -> tuple[Sequence[Tensor], list[jax.Array]]:
        """As a call, without a graph."""
        compiled = self.compiled
        if tracing.depth and tracing.active():
            outs, others = compiled.function(*arrays)
            return [self.wrap(o) for o in outs], others
        try:
            forward = compiled.forward or compiled.compile()
            watching.launching(compiled.records[""])
            outputs = forward(*arrays)
        except FAILURES as error:
            raise explain(error, self.name) from None
        compiled.records[""].calls += 1
        count = compiled.outputs
        return (self.wrap_all(outputs[:count]), outputs[count:]) if count else ((), outputs)

    # -- tensors over outputs --------------------------------------------------------------------------------------

    def _leaf(self, array: jax.Array) -> Fresh:
        """The layout of a tensor over one output. On a mesh, XLA chose its sharding; a traced output has none."""
        chosen = self.compiled.on_mesh and not isinstance(array, jax.core.Tracer)
        return result_leaf(array, array.sharding if chosen else self.sharding)

    def wrap(self, array: jax.Array) -> Tensor:
        """A tensor over one output."""
        tensor = wrap_result(self._leaf(array), array, self)
        trace = tracing.current()
        if trace is not None:
            trace.add_created(buffer_of(tensor))
        return tensor

    def wrap_all(self, arrays: Sequence[jax.Array]) -> list[Tensor]:
        """Tensors over the differentiable outputs of a compiled program; the first call determines their layouts."""
        if self.compiled.on_mesh or not self.leaves:
            self.leaves = list(map(self._leaf, arrays))
        return [wrap_result(leaf, a, self) for leaf, a in zip(self.leaves, arrays, strict=True)]

    def wrap_other(self, others: Sequence[jax.Array], position: int) -> Tensor:
        """A tensor over an output that is not differentiable."""
        leaf = self.other_leaves.get(position)
        if leaf is None or self.compiled.on_mesh:
            leaf = self.other_leaves[position] = self._leaf(others[position])
        return wrap_result(leaf, others[position], self)

    # -- as a node of torch's graph --------------------------------------------------------------------------------

    def forward(
        self,
        ctx: _Context,
        call: tuple[Sequence[jax.Array], list[jax.Array]],
        tensors: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        """As `Differentiable.forward`; the outputs that are not differentiable go into the list in `call`."""
        ctx.arrays, others = call
        ctx.tensors = tensors
        ctx.residuals = ctx.pullback = ctx.saved = None
        trace = tracing.current()
        if trace is not None:
            outputs, more = self._forward_traced(ctx, trace)
        else:
            outputs, more = self._forward_compiled(ctx)
        if private.saving_hooks() is not None:
            self._save(ctx)
        others.extend(more)
        return tuple(outputs)

    def _forward_traced(
        self, ctx: _Context, trace: tracing.Trace
    ) -> tuple[list[Tensor], Sequence[jax.Array]]:
        arrays = _unfreed(ctx)
        if trace.differentiable:  # JAX computes the gradient, and must see the function itself
            outs, others = self.compiled.function(*arrays)
        else:  # torch does, in this trace: with the pullback the forward pass is not computed twice
            outs, ctx.pullback, others = _forward(self.compiled, arrays)
        self.leaves = [result_leaf(o, self.sharding) for o in outs]
        return [self.wrap(o) for o in outs], others

    def _forward_compiled(self, ctx: _Context) -> tuple[list[Tensor], Sequence[jax.Array]]:
        try:
            outputs, ctx.residuals = self.compiled.run_saving(_unfreed(ctx))
        except FAILURES as error:
            raise explain(error, self.name) from None
        count = self.compiled.outputs
        return self.wrap_all(outputs[:count]), outputs[count:]

    def _save(self, ctx: _Context) -> None:
        """Let torch save the values for the backward pass, so that they reach `saved_tensors_hooks`."""
        arrays, ctx.saved = jax.tree.flatten((ctx.residuals, ctx.pullback))
        ctx.residuals = ctx.pullback = None
        ctx.save_for_backward(*map(self.wrap, arrays))

    def _saved(self, ctx: _Context) -> tuple[Sequence[jax.Array] | None, Pullback | None]:
        """(residuals, pullback) of a forward pass; at least one is None."""
        if ctx.saved is None:
            return ctx.residuals, ctx.pullback
        residuals, pullback = jax.tree.unflatten(
            ctx.saved, map(contiguous_array, ctx.saved_tensors)
        )
        return residuals, pullback

    def gradients(
        self, ctx: _Context, cotangents: Sequence[Tensor | None], needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """As `Differentiable.gradients`."""
        wanted = self._wanted(cotangents, needed)
        if not any(wanted):
            return [None] * len(wanted)
        filled = [_or_zeros(c, leaf) for c, leaf in zip(cotangents, self.leaves, strict=True)]
        results: list[Tensor | None]
        if torch.is_grad_enabled():
            arrays = [*_unfreed(ctx), *map(contiguous_array, filled)]
            differentiable, _ = self._second()([*ctx.tensors, *filled], arrays)
            results = [g if want else None for g, want in zip(differentiable, wanted, strict=True)]
        else:
            plain = self._pulled_back(ctx, [contiguous_array(c) for c in filled])
            results = [
                self.wrap(g) if want else None for g, want in zip(plain, wanted, strict=True)
            ]
        for i, (size, stride) in self.layouts.items():
            gradient = results[i]
            if gradient is not None:
                results[i] = gradient.as_strided(size, stride)
        if not private.keeps_graph():
            _free(ctx)
        return results

    def _pulled_back(self, ctx: _Context, cotangents: Sequence[jax.Array]) -> list[jax.Array]:
        residuals, pullback = self._saved(ctx)
        if residuals is not None:
            try:
                return self.compiled.pull_back(residuals, cotangents)
            except FAILURES as error:
                raise explain(error, self.name) from None
        return _pulled_back(pullback or _forward(self.compiled, _unfreed(ctx))[1], cotangents)

    def _second(self) -> Bridge:
        """The bridge of (all inputs, cotangents) -> gradients of the inputs, for a second derivative."""
        if self._pullback is None:
            first = self.compiled
            count = len(first.avals)

            def function(*operands: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
                arrays, cotangents = operands[:count], operands[count:]
                return _pulled_back(_forward(first, arrays)[1], cotangents), []

            avals = [
                *first.avals,
                *(jax.ShapeDtypeStruct(x.size, x.spec.dtype) for x in self.leaves),
            ]
            inputs = [*first.inputs, *range(count, count + len(self.leaves))]
            name = f"{self.name} (pullback)"
            second = CompiledFunction(
                function, avals, inputs, name=name, cause=first.cause, meshes=first.meshes
            )
            self._pullback = Bridge(second, self.sharding, self.layouts)
        return self._pullback

    def _wanted(self, cotangents: Sequence[Tensor | None], needed: Sequence[bool]) -> list[bool]:
        """Which inputs get a gradient: those that need one and that a cotangent flows to."""
        if self.flow is None:
            return list(needed)
        given = [i for i, c in enumerate(cotangents) if c is not None]
        reached = frozenset().union(*(self.flow[i] for i in given))
        return [need and i in reached for i, need in enumerate(needed)]


def _forward(compiled: CompiledFunction, arrays: Sequence[jax.Array]) -> tuple[Any, Pullback, Any]:
    """(differentiable outputs, pullback, others)."""
    primals = [arrays[i] for i in compiled.inputs]
    return jax.vjp(compiled.of_inputs(arrays), *primals, has_aux=True)


def _pulled_back(pullback: Pullback, cotangents: Sequence[jax.Array]) -> list[jax.Array]:
    """The gradients of the inputs. torch's cotangents are the conjugates of JAX's."""
    return [g.conj() for g in pullback([c.conj() for c in cotangents])]


def _free(ctx: _Context) -> None:
    """Free the values that the backward pass needed, as torch frees saved tensors.

    The result of a call outlives its backward pass: a loss that is kept would keep every residual, and an optimizer
    that updates a parameter in place would have to copy it first, since this node also refers to its array.
    """
    if ctx.residuals != []:  # without residuals a second backward pass needs nothing, as in torch
        ctx.residuals = ctx.pullback = None
    ctx.arrays, ctx.tensors = None, ()


def _unfreed(ctx: _Context) -> Sequence[jax.Array]:
    """The inputs of the call; torch's error if a backward pass freed them."""
    if ctx.arrays is None:
        raise RuntimeError(
            "Trying to backward through the graph a second time. The values that captured code saves for its backward "
            "pass are freed when you call .backward() or autograd.grad(), like torch's saved tensors. Specify "
            "retain_graph=True if you need to backward through the graph a second time."
        )
    return ctx.arrays


def _or_zeros(cotangent: Tensor | None, leaf: Fresh) -> Tensor:
    if cotangent is not None:
        return cotangent
    return torch.zeros(leaf.size, dtype=leaf.dtype, device="jax")


def layouts(tensors: Sequence[Tensor]) -> Layouts:
    """Size and stride of the tensors that differ from their buffer's array: transposed, channels last."""
    return {i: (t.shape, t.stride()) for i, t in enumerate(tensors) if not is_array(t)}


def avals_of(arrays: Sequence[jax.Array]) -> list[jax.ShapeDtypeStruct]:
    """Abstract values of arrays or tracers, with the sharding of the former."""
    return [
        jax.ShapeDtypeStruct(a.shape, a.dtype)
        if isinstance(a, jax.core.Tracer)
        else jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
        for a in arrays
    ]
