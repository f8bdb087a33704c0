"""Torch functions inside an open trace as JAX functions: the body of a scan, a branch, a checkpointed block.

`trace_body` runs the torch code once, over tracers of an inner jaxpr, in a trace nested in the open one. What it reads
from outside (a parameter, a tensor of the closure, the random key) becomes a constant of that jaxpr. The constants that
need a gradient are matched with their tensors: a control-flow call is one node of torch's graph (`call_bodies`), whose
inputs are its operands and these tensors. After that the body is a closed JAX function: JAX can trace, differentiate
and run it any number of times, and the torch code never runs again. So a backward pass draws the same random numbers as
its forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import Jaxpr

from ..dispatch import pausing
from ..dispatch.read import contiguous_array
from ..operators.bridge import Bridge, avals_of
from ..programs import rng, tracing
from ..programs.compiled import CompiledFunction
from ..programs.trees import Tree, is_device_tensor, split
from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.hollow import identity
from ..storage.layout import covers_buffer
from .code_trace import CodeTrace
from .errors import CaptureError
from .flow import Edge, Flow, edge_of, ends_of
from .results import Output

Tensor = torch.Tensor
_KEY = rng.key_aval()
_NO_KEY = np.zeros(2, np.uint64)  # for a body that draws no random numbers
# (key, *arrays) -> (arrays, next key)
Bound = Callable[..., tuple[list[jax.Array], jax.Array]]
# (bodies, key, operands' arrays) -> (results, next key): the JAX function that a control-flow call makes of its bodies
Build = Callable[[list[Bound], jax.Array, list[jax.Array]], tuple[list[jax.Array], jax.Array]]


@dataclass
class Body:
    """A traced torch function.

    Attributes:
        closure: tensors from outside that need a gradient, each with its index among `constants`.
        outputs: the tensors among the results.
        result: the tree of its result, whose operands are `outputs`.
        flow: what gradients of each of `outputs` flow to.
        written: those of the `state` that the body wrote to.
        draws: whether it draws random numbers.
    """

    jaxpr: Jaxpr
    constants: list[jax.Array]
    closure: list[tuple[int, Tensor]]
    outputs: list[Output]
    result: Tree
    flow: list[Flow]
    written: list[Tensor]
    draws: bool

    def bind(self, closure: dict[int, jax.Array]) -> Bound:
        """The body as a JAX function, given arrays for the closure's tensors (by the tensors' identity)."""
        constants = list(self.constants)
        for index, tensor in self.closure:
            constants[index] = _in_memory_order(tensor, closure[id(tensor)])

        def bound(key: jax.Array, *arrays: jax.Array) -> tuple[list[jax.Array], jax.Array]:
            *results, key = jax.core.eval_jaxpr(self.jaxpr, constants, key, *arrays)
            return results, key

        return bound


def pull_back(
    jaxpr: Jaxpr, constants: Sequence[jax.Array], cotangents: Sequence[jax.Array]
) -> list[jax.Array]:
    """Run the body of a user's backward code, which draws no random numbers, on JAX's cotangents.

    torch's cotangents are the conjugates of JAX's.
    """
    conjugates = [c.conj() for c in cotangents]
    *gradients, _ = jax.core.eval_jaxpr(jaxpr, constants, _NO_KEY, *conjugates)
    return [g.conj() for g in gradients]


def trace_body(
    function: Callable[..., object],
    avals: Sequence[jax.ShapeDtypeStruct],
    what: str,
    state: Sequence[Tensor] = (),
) -> Body:
    """Trace a torch function of tensors like `avals`, in a trace nested in the open one.

    Args:
        function: torch code; returns a pytree.
        avals: shapes and dtypes of its arguments.
        what: what to call the code in messages, such as "the body of a scan".
        state: tensors of the closure that become inputs, after the arguments. The code may write to them; the new
            values of those that it wrote follow the results.

    Raises:
        CaptureError: if it writes to a tensor from outside, or stores a tensor that it created outside itself.
    """
    trace = CodeTrace(differentiable=torch.is_grad_enabled())
    state_of_buffer = {id(buffer_of(t)): t for t in state}
    ended: list[_Ended] = []

    def run(key: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
        with tracing.tracing(trace):
            source = rng.default_key()
            trace.touch(source)
            source.array = key
            for tensor, array in zip(state, arrays[len(avals) :], strict=True):
                _substitute(trace, tensor, array)
            inputs = list(map(trace.input_over, arrays[: len(avals)]))
            edges = [edge_of(t) if t.requires_grad else None for t in (*inputs, *state)]
            result = function(*inputs)
            # With the hook on, Python keeps the variables of this function as they once were.
            with pausing.paused():
                tensors, tree = split(result, is_device_tensor)
                del result
                results = list(map(contiguous_array, tensors))
                outputs = [
                    Output(tuple(t.shape), t.dtype, t.requires_grad, i)
                    for i, t in enumerate(tensors)
                ]
                returned = {id(buffer_of(t)) for t in tensors}
                flow, closure = _flow(tensors, edges, trace.readers.values())
                del inputs, edges, tensors
                # What was created here counts only if something holds it when garbage is collected.
                written = [
                    buffer
                    for buffer in trace.written()
                    if buffer is not source and not trace.created_here(buffer)
                ]
                if any(isinstance(buffer, rng.RandomKey) for buffer in written):
                    raise _generator_refused(what)
                if any(id(buffer) not in state_of_buffer for buffer in written):
                    raise _write_refused(what)
                if trace.escaped(returned):
                    raise _escape_refused(what)
                changed = [state_of_buffer[id(buffer)] for buffer in written]
                ended.append(_Ended(outputs, tree, flow, changed, closure))
                return [*results, *map(contiguous_array, changed), source.array]

    closed = jax.make_jaxpr(run)(_KEY, *avals, *(aval_of(t) for t in state))
    (end,) = ended
    outside = [t for t in end.closure if id(buffer_of(t)) not in state_of_buffer]
    closure = _closure(trace, closed.consts, outside)
    draws = closed.jaxpr.outvars[-1] is not closed.jaxpr.invars[0]
    return Body(
        closed.jaxpr, closed.consts, closure, end.outputs, end.tree, end.flow, end.written, draws
    )


class _Ended(NamedTuple):
    """What is known of a body when its code has run; `closure`: the outside tensors that gradients flow to."""

    outputs: list[Output]
    tree: Tree
    flow: list[Flow]
    written: list[Tensor]
    closure: list[Tensor]


def call_bodies(
    name: str,
    build: Build,
    operands: Sequence[Tensor],
    bodies: Sequence[Body],
    differentiable: Sequence[bool],
    flow: Sequence[Flow] | None = None,
) -> list[Tensor]:
    """Call a JAX function made of bodies: one node in torch's graph.

    Args:
        name: the name of the call in messages.
        build: makes one JAX function of the bodies.
        operands: the tensors that the call takes.
        bodies: the torch code in it.
        differentiable: which results a gradient may flow from.
        flow: what gradients of the first results flow to, and none of the others; by default all flow to everything.
    """
    trace = tracing.current()
    assert trace is not None
    closure = {id(t): t for body in bodies for _, t in body.closure}
    tensors = [*operands, *closure.values()]
    inputs = [i for i, t in enumerate(tensors) if t.requires_grad]
    reached = None if flow is None else _reached(flow, tensors, inputs)
    if (
        reached is not None
    ):  # a result that no gradient flows from, such as a carry without one, is a constant
        reached += [frozenset()] * (len(differentiable) - len(reached))
        differentiable = [s and bool(r) for s, r in zip(differentiable, reached, strict=True)]
    draws = any(body.draws for body in bodies)
    source = rng.default_key()
    arrays = [read(t) for t in tensors]
    if draws:
        arrays.append(trace.read(source))

    # The function may outlive the trace, so it must not hold the operands: they would count as stored.
    count, first_closure, names = len(tensors), len(operands), list(closure)

    def flat(*arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        key = arrays[count] if draws else jnp.asarray(_NO_KEY)
        closure_arrays = dict(zip(names, arrays[first_closure:], strict=False))
        bound = [body.bind(closure_arrays) for body in bodies]
        results, key = build(bound, key, list(arrays[:first_closure]))
        first = [r for r, s in zip(results, differentiable, strict=True) if s]
        rest = [r for r, s in zip(results, differentiable, strict=True) if not s]
        return first, [*rest, key]

    compiled = CompiledFunction(flat, avals_of(arrays), inputs, name=name)
    if reached is not None:
        reached = [r for r, s in zip(reached, differentiable, strict=True) if s]
    bridge = Bridge(compiled, placement.current(), flow=reached)
    outputs, others = bridge([tensors[i] for i in inputs], arrays)
    *rest, key = others
    if draws:
        trace.touch(source)
        source.array = key
    first, second = iter(outputs), iter([bridge.wrap(a) for a in rest])
    return [next(first if s else second) for s in differentiable]


def _reached(
    flows: Sequence[Flow], tensors: Sequence[Tensor], inputs: Sequence[int]
) -> list[frozenset[int]]:
    """For each flow, what it reaches of the inputs: their indices in `inputs`, which are indices of `tensors`."""
    identities = [(i, id(tensors[i])) for i in inputs]
    return [
        frozenset(k for k, (i, t) in enumerate(identities) if i in f.operands or t in f.closure)
        for f in flows
    ]


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


def read(tensor: Tensor) -> jax.Array:
    """A tensor's array; a constant to JAX if no gradient flows to the tensor."""
    array: jax.Array = contiguous_array(tensor)
    return array if tensor.requires_grad else jax.lax.stop_gradient(array)


def _substitute(trace: tracing.Trace, tensor: Tensor, array: jax.Array) -> None:
    """Make reads of the tensor return this array."""
    trace.substitute(buffer_of(tensor), _in_memory_order(tensor, array))


def _in_memory_order(tensor: Tensor, array: jax.Array) -> jax.Array:
    """The array of a tensor's buffer, from the tensor's values in logical order."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda d: -strides[d])
    if order != list(range(tensor.ndim)):
        array = array.transpose(order)
    shape = buffer_of(tensor).spec.shape
    return array if array.shape == shape else array.reshape(shape)


def _flow(
    results: list[Tensor], inputs: list[Edge | None], tensors: Iterable[Tensor]
) -> tuple[list[Flow], list[Tensor]]:
    """What gradients of each result flow to, and those of `tensors` that some gradient flows to."""
    if not torch.is_grad_enabled():
        return [Flow(frozenset(), frozenset())] * len(results), []
    outside = {edge_of(t): t for t in tensors}
    indices = {edge: i for i, edge in enumerate(inputs) if edge is not None}
    differentiable = [i for i, t in enumerate(results) if t.requires_grad]
    operands: list[set[int]] = [set() for _ in results]
    closure: list[set[int]] = [set() for _ in results]
    reached = []
    for edge, starts in ends_of(
        [edge_of(results[i]) for i in differentiable], {*outside, *indices}
    ).items():
        if edge in indices:
            for k in starts:
                operands[differentiable[k]].add(indices[edge])
        elif edge in outside:
            reached.append(outside[edge])
            for k in starts:
                closure[differentiable[k]].add(id(outside[edge]))
    flow = [Flow(frozenset(o), frozenset(c)) for o, c in zip(operands, closure, strict=True)]
    return flow, [t for t in outside.values() if any(t is other for other in reached)]


def _closure(
    trace: tracing.Trace, constants: list[jax.Array], tensors: list[Tensor]
) -> list[tuple[int, Tensor]]:
    """Tensors from outside, each with its index among the constants."""
    indices = {identity(constant): i for i, constant in enumerate(constants)}
    closure: dict[int, Tensor] = {}
    for tensor in tensors:
        buffer = buffer_of(tensor)
        array = buffer.array
        constant = array if isinstance(array, jax.core.Tracer) else trace.root.constant_of(buffer)
        index = indices.get(identity(constant))
        if index is None:
            raise CaptureError(
                "a gradient flows to a tensor that the body of a control-flow call closes over, but never reads",
                "Pass it as an operand.",
            )
        if closure.setdefault(index, tensor) is not tensor or not covers_buffer(tensor):
            raise CaptureError(
                "the body of a control-flow call reads a tensor that requires a gradient and is a view of a larger "
                "tensor, or shares memory with another tensor that requires a gradient",
                "Pass it as an operand, or read x.clone().",
            )
    return list(closure.items())


def _write_refused(what: str) -> CaptureError:
    return CaptureError(
        f"{what} writes to a tensor from outside (a running statistic, a counter, a .grad)",
        "It is traced once for all iterations: pass the tensor in (in the carry, or as an operand) and return its new "
        "value. For running statistics, call .eval(), or use scan_layers or a Python loop.",
    )


def _generator_refused(what: str) -> CaptureError:
    return CaptureError(
        f"{what} draws random numbers from a generator (generator=...)",
        "It is traced once for all iterations and carries only the device's own key: omit generator= here, or draw "
        "the numbers outside and pass them in.",
    )


def _escape_refused(what: str) -> CaptureError:
    return CaptureError(
        f"{what} stores a tensor outside itself (in an attribute, a list, a global or a .grad)",
        "The tensor has no value there: return it instead.",
    )
