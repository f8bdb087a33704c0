"""Torch functions inside an open trace as JAX functions: the body of a scan, a branch, a checkpointed block.

`trace_body` runs the torch code once, over tracers of an inner jaxpr, in a trace nested in the open one. What it reads
from outside (a parameter, a tensor of the closure, the random key) becomes a constant of that jaxpr. Those constants
that need a gradient are identified: a control-flow call is one node of torch's graph (`call_bodies`), whose inputs are
its operands and these tensors. After that the body is a closed JAX function: JAX can trace, differentiate and run it
any number of times, and the torch code never runs again. So a backward pass draws the same random numbers as its
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..base.torch_private import pytree
from ..dispatch import pausing
from ..dispatch.read import contiguous_array
from ..operators.bridge import Bridge, avals_of
from ..programs import rng, tracing
from ..programs.compiled import Compiled
from ..storage import placement
from ..storage.buffer import buffer_of, spec_of, wrap
from ..storage.dtypes import to_torch
from .errors import CaptureError
from .flow import Edge, Flow, edge_of, ends_of
from .intercepted import intercepted
from .results import Output

Tensor = torch.Tensor
_KEY = jax.ShapeDtypeStruct((2,), np.uint32)
# (key, *arrays) -> (arrays, next key)
Bound = Callable[..., tuple[list[Any], Any]]


@dataclass
class Body:
    """A traced torch function. `structure` and `leaves` describe its result."""

    jaxpr: Any
    constants: list[Any]
    closure: list[tuple[int, Tensor]]  # (place among the constants, tensor that needs a gradient)
    structure: Any
    leaves: list[Any]  # an Output, or the value itself
    flow: list[Flow]  # of each tensor among the results
    written: list[Tensor]  # of `cells`: those the body wrote to
    draws: bool  # takes random numbers

    @property
    def outputs(self) -> list[Output]:
        """The tensors among the results."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Output)]

    def bind(self, closure: dict[int, Any]) -> Bound:
        """The body as a JAX function, given arrays for the closure's tensors (by the tensors' identity)."""
        constants = list(self.constants)
        for place, tensor in self.closure:
            constants[place] = _in_memory_order(tensor, closure[id(tensor)])

        def bound(key: Any, *arrays: Any) -> tuple[list[Any], Any]:
            *results, key = jax.core.eval_jaxpr(self.jaxpr, constants, key, *arrays)
            return results, key

        return bound


def trace_body(
    function: Callable[..., Any],
    avals: Sequence[Any],
    what: str,
    cells: Sequence[Tensor] = (),
) -> Body:
    """Trace a torch function of tensors like `avals`, in a trace nested in the open one.

    Args:
        function: torch code; returns a pytree.
        avals: shapes and dtypes of its arguments.
        what: what to call the code in messages, such as "the body of a scan".
        cells: tensors of the closure to make inputs, after the arguments; the code may write to them, and
            their new values follow the results.

    Raises:
        CaptureError: if it writes to a tensor from outside, or stores a tensor that it created outside itself.
    """
    trace = tracing.Trace(differentiable=torch.is_grad_enabled())
    found: list[Any] = []

    def run(key: Any, *arrays: Any) -> list[Any]:
        with tracing.tracing(trace), intercepted.held() if trace.differentiable else nullcontext():
            source = rng.default()
            trace.touch(source)
            source.array = key
            own = {id(buffer_of(t)): t for t in cells}
            for tensor, array in zip(cells, arrays[len(avals) :], strict=True):
                _put(trace, tensor, array)
            inputs = [_input(trace, a) for a in arrays[: len(avals)]]
            edges = [edge_of(t) if t.requires_grad else None for t in (*inputs, *cells)]
            result = function(*inputs)
            # With the hook on, Python keeps the variables of this function as they once were.
            with pausing.paused():
                leaves, structure = pytree.tree_flatten(result)
                del result
                results, outputs = _results(leaves)
                kept = {id(buffer_of(t)) for t in leaves if _is_ours(t)}
                flow, outside = _flow(leaves, edges, trace.readers.values())
                del inputs, edges, leaves
                written = [cell for cell in trace.written() if cell is not source]
                if any(isinstance(cell, rng.Source) for cell in written):
                    raise _generator_refused(what)
                if any(id(cell) not in own for cell in written):
                    raise _write_refused(what)
                if trace.escaped(kept):
                    raise _escape_refused(what)
                changed = [own[id(cell)] for cell in written]
                found.extend((structure, outputs, flow, changed, outside))
                return [*results, *map(contiguous_array, changed), source.array]

    closed = jax.make_jaxpr(run)(_KEY, *avals, *(aval_of(t) for t in cells))
    structure, outputs, flow, changed, outside = found
    own = {id(buffer_of(t)) for t in cells}
    closure = _closure(trace, closed.consts, [t for t in outside if id(buffer_of(t)) not in own])
    draws = closed.jaxpr.outvars[-1] is not closed.jaxpr.invars[0]
    return Body(closed.jaxpr, closed.consts, closure, structure, outputs, flow, changed, draws)


def call_bodies(
    name: str,
    build: Callable[..., tuple[list[Any], Any]],
    operands: Sequence[Tensor],
    bodies: Sequence[Body],
    differentiable: Sequence[bool],
    flow: Sequence[Flow] | None = None,
) -> list[Tensor]:
    """Call a JAX function made of bodies: one node in torch's graph.

    Args:
        name: what it is called in messages.
        build: `build(bound bodies, key, operands' arrays) -> (results, next key)`.
        operands: its tensors.
        bodies: the torch code in it.
        differentiable: which results a gradient may flow from.
        flow: the tensors that a gradient flows to from each differentiable result; by default all.
    """
    trace = tracing.current()
    assert trace is not None
    closure = {id(t): t for body in bodies for _, t in body.closure}
    tensors = [*operands, *closure.values()]
    draws = any(body.draws for body in bodies)
    source = rng.default()
    arrays = [read(t) for t in tensors]
    if draws:
        arrays.append(trace.read(source))

    def flat(*given: Any) -> tuple[list[Any], list[Any]]:
        key = given[len(tensors)] if draws else jnp.zeros(2, np.uint32)
        own = dict(zip(closure, given[len(operands) :], strict=False))
        bound = [body.bind(own) for body in bodies]
        results, key = build(bound, key, list(given[: len(operands)]))
        first = [r for r, s in zip(results, differentiable, strict=True) if s]
        rest = [r for r, s in zip(results, differentiable, strict=True) if not s]
        return first, [*rest, key]

    inputs = [i for i, t in enumerate(tensors) if t.requires_grad]
    compiled = Compiled(flat, avals_of(arrays), inputs, name=name)
    places = [(i, id(tensors[i])) for i in inputs]
    reached: list[frozenset[int]] = [
        frozenset(k for k, (i, key) in enumerate(places) if i in own.operands or key in own.closure)
        for own, s in zip(flow or (), differentiable, strict=False)
        if s
    ]
    bridge = Bridge(compiled, placement.current(), flow=reached if flow else None)
    outputs, others = bridge([tensors[i] for i in inputs], arrays)
    *rest, key = others
    if draws:
        trace.touch(source)
        source.array = key
    first, second = iter(outputs), iter([bridge.wrap(a) for a in rest])
    return [next(first if s else second) for s in differentiable]


def needs_gradient(operands: Sequence[Tensor], bodies: Sequence[Body]) -> bool:
    """Whether a gradient could flow back through a call of these bodies."""
    tensors = [*operands, *(t for body in bodies for _, t in body.closure)]
    return any(t.requires_grad for t in tensors) and any(
        output.differentiable for body in bodies for output in body.outputs
    )


# -- tensors and arrays -------------------------------------------------------------------------------------------


def aval_of(tensor: Tensor) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a tensor, for JAX."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), buffer_of(tensor).spec.dtype)


def _is_ours(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type == "jax"


def read(tensor: Tensor) -> Any:
    """A tensor's array; a constant to JAX if no gradient flows to the tensor."""
    array = contiguous_array(tensor)
    return array if tensor.requires_grad else jax.lax.stop_gradient(array)


def _input(trace: tracing.Trace, array: Any) -> Tensor:
    """A tensor over an argument of the body: not a leaf, so that the code may write to it."""
    shape = tuple(array.shape)
    spec = spec_of(np.dtype(array.dtype), shape, placement.current())
    tensor = wrap(array, spec, shape, to_torch(array.dtype))
    trace.add_born(buffer_of(tensor))
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    return tensor.requires_grad_().clone() if differentiable and torch.is_grad_enabled() else tensor


def _results(leaves: list[Any]) -> tuple[list[Any], list[Any]]:
    """Arrays of the tensors among what a body returned, and what all of it is."""
    arrays: list[Any] = []
    outputs: list[Any] = []
    for leaf in leaves:
        if _is_ours(leaf):
            differentiable = leaf.requires_grad
            outputs.append(Output(tuple(leaf.shape), leaf.dtype, differentiable, len(arrays)))
            arrays.append(contiguous_array(leaf))
        else:
            outputs.append(leaf)
    return arrays, outputs


def _put(trace: tracing.Trace, tensor: Tensor, array: Any) -> None:
    """Let reads of the tensor give this array."""
    trace.substitute(buffer_of(tensor), _in_memory_order(tensor, array))


def _in_memory_order(tensor: Tensor, array: Any) -> Any:
    """The array of a tensor's buffer, from the tensor's values in logical order."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda d: -strides[d])
    if order != list(range(tensor.ndim)):
        array = array.transpose(order)
    shape = buffer_of(tensor).spec.shape
    return array if array.shape == shape else array.reshape(shape)


def _flow(
    results: list[Any], inputs: list[Edge | None], tensors: Iterable[Tensor]
) -> tuple[list[Flow], list[Tensor]]:
    """What gradients of each tensor among the results flow to, and those of `tensors` that any flows to."""
    results = [t for t in results if _is_ours(t)]
    if not torch.is_grad_enabled():
        return [Flow(frozenset(), frozenset())] * len(results), []
    outside = {edge_of(t): t for t in tensors}
    places = {edge: i for i, edge in enumerate(inputs) if edge is not None}
    differentiable = [i for i, t in enumerate(results) if t.requires_grad]
    operands: list[set[int]] = [set() for _ in results]
    closure: list[set[int]] = [set() for _ in results]
    found = []
    for edge, starts in ends_of(
        [edge_of(results[i]) for i in differentiable], {*outside, *places}
    ).items():
        if edge in places:
            for k in starts:
                operands[differentiable[k]].add(places[edge])
        elif edge in outside:
            found.append(outside[edge])
            for k in starts:
                closure[differentiable[k]].add(id(outside[edge]))
    flow = [Flow(frozenset(o), frozenset(c)) for o, c in zip(operands, closure, strict=True)]
    return flow, [t for t in outside.values() if any(t is other for other in found)]


def _closure(
    trace: tracing.Trace, constants: list[Any], tensors: list[Tensor]
) -> list[tuple[int, Tensor]]:
    """Tensors from outside, each with its place among the constants."""
    places = {id(constant): i for i, constant in enumerate(constants)}
    found: dict[int, Tensor] = {}
    for tensor in tensors:
        cell = buffer_of(tensor)
        array = cell.array
        constant = array if isinstance(array, jax.core.Tracer) else trace.root.constant_of(cell)
        place = places.get(id(constant))
        if place is None:
            continue
        if found.setdefault(place, tensor) is not tensor or not whole(tensor):
            raise CaptureError(
                "the body of a control-flow call reads a tensor that requires a gradient and is a view of a larger "
                "tensor, or shares memory with another tensor that requires a gradient",
                "Pass it as an operand, or read x.clone().",
            )
    return list(found.items())


def whole(tensor: Tensor) -> bool:
    """Whether a tensor covers its whole buffer, each element once."""
    return buffer_of(tensor).spec.numel == tensor.numel() and not tensor.storage_offset()


def _write_refused(what: str) -> CaptureError:
    return CaptureError(
        f"{what} writes to a tensor from outside (a running statistic, a counter, a .grad)",
        "It is traced once for all iterations: pass the tensor in (in the carry, or as an operand) and return its new "
        "value. For running statistics, call .eval(), or use scan_layers or a Python loop.",
    )


def _generator_refused(what: str) -> CaptureError:
    return CaptureError(
        f"{what} draws random numbers from a generator (generator=...)",
        "It is traced once for all iterations and threads only the device's own key: omit generator= here, or draw "
        "the numbers outside and pass them in.",
    )


def _escape_refused(what: str) -> CaptureError:
    return CaptureError(
        f"{what} stores a tensor outside itself (in an attribute, a list, a global or a .grad)",
        "The tensor has no value there: return it instead.",
    )
