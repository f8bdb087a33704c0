"""One run of torch code over tracers, stored as a JAX function.

`capture` runs the code inside `jax.make_jaxpr` without arguments. Every buffer that the code reads becomes a constant
of the jaxpr under its own identity (`programs/tracing.py`): that of an argument, of a parameter deep in a module, of a
tensor in a closure, or a random key, which is a buffer too. Afterwards each constant is classified:

* the buffer of an **argument** becomes an input, filled from the arguments of each call;
* a buffer that **outlives the trace** (a parameter, a running statistic, the random key) becomes an input, read at each
  call;
* everything else (a table that the code built, a literal) stays a constant of this program.

The results of the code and the buffers that it wrote become outputs. The captured function then has no free variables,
and can be compiled, differentiated and run like any JAX function.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import jax
import numpy as np
import torch
from jax.core import ShapedArray
from jax.extend.core import Jaxpr
from jax.sharding import Sharding

from ..base.torch_private import pytree
from ..device.start import first_use
from ..dispatch.read import contiguous_array
from ..programs import tracing, width
from ..programs.jaxprs import user_line
from ..programs.meshes import named_meshes
from ..programs.rng import RandomKey
from ..programs.trees import is_device_tensor
from ..storage import placement
from ..storage.buffer import Buffer, Spec, buffer_of, spec_of
from ..storage.hollow import identity
from .code_trace import CodeTrace
from .dependencies.fresh_objects import FreshObjects
from .dependencies.labels import Role
from .flow import edge_of, ends_of
from .results import Known, Results

Tensor = torch.Tensor


@dataclass
class Captured:
    """The result of one trace. `function` takes one array for each of `buffers`.

    Attributes:
        buffers: weak references to the buffers of the inputs.
        constants: for each constant of the jaxpr, an index into `buffers`, or its value.
        avals, specs: of the inputs.
        structure: the structure of the result.
        leaves: the leaves of the result: each an Output, an OutputView, an Alias (`results.py`), or the value itself.
        outputs: the number of differentiable outputs.
        others: the number of outputs that are not differentiable.
        written: the inputs whose buffers the code wrote to, in order once the inputs are ordered (`reordered`). Their
            new values are the next outputs.
        new_specs: the specs of these new values.
        escaped: weak references to buffers that the code created and stored outside itself, with their specs. Their
            values are the last outputs.
        names, roles: of the inputs, for views.
        fresh: the objects among the leaves that each run creates. The tensors inside them follow the leaves of the
            result among `leaves`.
        meshes: those that the code names, in sharding constraints.
        gradients: how the gradients among `escaped` lie, by their position: as their leaves.
    """

    jaxpr: Jaxpr
    buffers: list[weakref.ref[Buffer]]
    constants: list[int | jax.Array]
    avals: list[jax.ShapeDtypeStruct]
    specs: list[Spec]
    structure: pytree.TreeSpec
    leaves: list[object]
    outputs: int
    others: int
    written: list[int]
    new_specs: list[Spec]
    escaped: list[tuple[weakref.ref[Buffer], Spec]]
    trace_seconds: float = 0.0
    names: list[str] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    meshes: list[Sharding] = field(default_factory=list)
    fresh: FreshObjects | None = None
    gradients: dict[int, Sharding] = field(default_factory=dict)

    def function(self, *arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        """(differentiable outputs, then other outputs and the new arrays of written and created tensors)."""
        constants = [arrays[c] if type(c) is int else c for c in self.constants]
        flat = jax.core.eval_jaxpr(self.jaxpr, constants)
        first = self.outputs + self.others
        for i, where in self.kept_shardings.items():
            flat[first + i] = jax.lax.with_sharding_constraint(flat[first + i], where)
        return flat[: self.outputs], flat[self.outputs :]

    def writing_first(self, *arrays: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        """As `function`, for a program to which the inputs that it writes are donated: new values come first.

        `programs/donation.py` has the reason.
        """
        outputs, others = self.function(*arrays)
        written = slice(self.others, self.others + len(self.written))
        return [], [*others[written], *outputs, *others[: written.start], *others[written.stop :]]

    def line_of_escaped(self, landed: Collection[int]) -> tuple[str, int] | tuple[None, None]:
        """File and line of the user's code that computed the first of `escaped` that is not in `landed`."""
        first = self.outputs + self.others + len(self.written)
        made = {id(v): equation for equation in self.jaxpr.eqns for v in equation.outvars}
        for i, variable in enumerate(self.jaxpr.outvars[first:]):
            if i not in landed and (equation := made.get(id(variable))) is not None:
                return user_line(equation) or (None, None)
        return None, None

    @property
    def kept_shardings(self) -> dict[int, Sharding]:
        """The shardings of what is written and of new gradients: those of old values and of leaves on a mesh."""
        shardings = [self.specs[i].placement for i in self.written]
        gradients = {len(self.written) + i: where for i, where in self.gradients.items()}
        return gradients | {
            i: sharding
            for i, sharding in enumerate(shardings)
            if placement.on_mesh(sharding)
            and self.new_specs[i].shape == self.specs[self.written[i]].shape
        }

    def roles_by_name(self) -> dict[str, Role]:
        """The role of each input."""
        return dict(zip(self.names, self.roles, strict=False))

    def reusable(self, inputs: list[int]) -> list[int]:
        """Those of `inputs` whose memory an output can reuse. Memory that is written is reused by its new value."""
        outputs = (v.aval for v in self.jaxpr.outvars)
        free = Counter((a.shape, a.dtype) for a in outputs if isinstance(a, ShapedArray))
        free.subtract((self.avals[i].shape, self.avals[i].dtype) for i in self.written)
        reusable = []
        for i in inputs:
            kind = self.avals[i].shape, self.avals[i].dtype
            if i not in self.written and free[kind] > 0:
                free[kind] -= 1
                reusable.append(i)
        return reusable

    def reordered(self, order: list[int]) -> Captured:
        """The same function with its inputs in this order, and the new values of those that it writes too."""
        new = {old: i for i, old in enumerate(order)}
        written = [new[i] for i in self.written]
        by_input = sorted(range(len(written)), key=written.__getitem__)
        outs, first = self.jaxpr.outvars, self.outputs + self.others
        last = first + len(written)
        outvars = [*outs[:first], *(outs[first + k] for k in by_input), *outs[last:]]
        return replace(
            self,
            jaxpr=self.jaxpr.replace(outvars=outvars),
            buffers=[self.buffers[i] for i in order],
            avals=[self.avals[i] for i in order],
            specs=[self.specs[i] for i in order],
            constants=[new[c] if type(c) is int else c for c in self.constants],
            written=sorted(written),
            new_specs=[self.new_specs[k] for k in by_input],
        )


@dataclass
class Outcome:
    """What is known of the code once it has run.

    Attributes:
        trace: the trace that it ran under, closed by now.
        structure, leaves, outputs, others, new_specs, escaped, fresh: as in `Captured`.
        written: the buffers that the code wrote to.
        differentiated: the leaves that torch's graph of the outputs ends at.
        flow: for each differentiable output, the indices among `differentiated` that gradients flow to.
    """

    trace: CodeTrace
    structure: pytree.TreeSpec
    leaves: list[object]
    outputs: int
    others: int
    written: list[Buffer]
    new_specs: list[Spec]
    escaped: list[tuple[weakref.ref[Buffer], Spec]]
    differentiated: list[Tensor]
    flow: list[frozenset[int]]
    fresh: FreshObjects | None


def capture(
    function: Callable[[], object],
    differentiable: bool,
    gradients: dict[int, tuple[weakref.ref[Tensor], Tensor | None]] | None = None,
    known: Callable[[], Iterable[Known]] = tuple,
    held: Callable[[], Iterable[Tensor]] = tuple,
    fresh: Callable[[], FreshObjects | None] = lambda: None,
) -> tuple[Captured, Outcome]:
    """Run `function` over tracers.

    Args:
        function: torch code whose arguments are already bound.
        differentiable: `jax.vjp` will run through it: tensors that need no gradient are constants to it.
        gradients: leaves and their `.grad` by the leaves' identity; those that are read are added.
        known: returns, at the end of the trace, the tensors that the caller has.
        held: returns, at the end of the trace, tensors that the code stored.
        fresh: returns, at the end of the trace, the objects among the results that the code created.
    """
    trace = CodeTrace(differentiable=differentiable, eager=True)
    trace.gradients = {} if gradients is None else gradients
    outcomes: list[Outcome] = []

    def run() -> list[jax.Array]:
        arrays, outcome = _run(function, trace, known, held, fresh)
        outcomes.append(outcome)
        return arrays

    first_use()  # outside the trace: starting the device reads files
    started = time.perf_counter()
    with width.of_torch(), placement.without_context_mesh():
        closed = jax.make_jaxpr(run)()
    seconds = time.perf_counter() - started
    (outcome,) = outcomes
    buffers, arrays, constants = _inputs(trace, closed.consts)
    index = {id(buffer): i for i, buffer in enumerate(buffers)}
    captured = Captured(
        jaxpr=closed.jaxpr,
        buffers=[weakref.ref(buffer) for buffer in buffers],
        constants=constants,
        avals=[jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in arrays],
        specs=[buffer.spec for buffer in buffers],
        structure=outcome.structure,
        leaves=outcome.leaves,
        outputs=outcome.outputs,
        others=outcome.others,
        written=[index[id(buffer)] for buffer in outcome.written],
        new_specs=outcome.new_specs,
        escaped=outcome.escaped,
        trace_seconds=seconds,
        meshes=named_meshes(closed.jaxpr),
        fresh=outcome.fresh,
    )
    return captured, outcome


def _inputs(
    trace: CodeTrace, consts: Iterable[jax.Array]
) -> tuple[list[Buffer], list[jax.Array], list[int | jax.Array]]:
    """The buffers that the code read, their arrays, and for each constant its input or its value."""
    by_constant = {
        identity(constant): (buffer, constant)
        for reference, constant in trace.captured
        if (buffer := reference()) is not None
    }
    buffers: list[Buffer] = []
    arrays: list[jax.Array] = []
    constants: list[int | jax.Array] = []
    index: dict[int, int] = {}  # id of a buffer -> its input
    for constant in consts:
        read = by_constant.get(identity(constant))
        if read is None:
            # The user may write to a NumPy array before this program is compiled, or compared with another one.
            is_numpy = isinstance(constant, np.ndarray)
            constants.append(constant.copy() if is_numpy else constant)
            continue
        buffer, array = read
        if id(buffer) not in index:
            index[id(buffer)] = len(buffers)
            buffers.append(buffer)
            arrays.append(array)
        constants.append(index[id(buffer)])
    return buffers, arrays, constants


def respecify(buffers: Iterable[Buffer]) -> None:
    """Set the specs of buffers that a program on a mesh has written, because XLA chose their shardings.

    A random key returns to its device, because the next program may run there.
    """
    for buffer in buffers:
        if isinstance(buffer, RandomKey):
            # XLA chose this sharding too; one of several processes can move only a full copy.
            copies = placement.moved(buffer.array, placement.replicated(buffer.array.sharding))
            buffer.array = placement.moved(copies, buffer.where)
            continue
        if not isinstance(buffer.array, jax.core.Tracer):
            spec = buffer.spec
            buffer.spec = spec_of(spec.dtype, spec.shape, buffer.array.sharding)


def placement_of(captured: Captured) -> Sharding:
    """The placement of the outputs, which is that of the inputs."""
    return captured.specs[0].placement if captured.specs else placement.current()


def _run(
    function: Callable[[], object],
    trace: CodeTrace,
    known: Callable[[], Iterable[Known]],
    held: Callable[[], Iterable[Tensor]],
    fresh: Callable[[], FreshObjects | None],
) -> tuple[list[jax.Array], Outcome]:
    """Run the code under the trace; returns the tracers of everything that leaves it."""
    with tracing.tracing(trace):
        result = function()
        trace.check_refusals()
        # pytree would take a size apart and return a plain tuple.
        leaves, structure = pytree.tree_flatten(result, lambda x: isinstance(x, torch.Size))
        objects = fresh()
        if objects is not None:
            leaves += objects.tensors
            objects.settle(leaves)
        results = Results(leaves, trace, known())
        outputs, others = len(results.differentiable), len(results.others)
        arrays = [contiguous_array(t) for t in (*results.differentiable, *results.others)]
        differentiated: list[Tensor] = []
        flow: list[frozenset[int]] = []
        if trace.differentiable:
            elsewhere = [t for t in leaves if isinstance(t, Tensor) and t.device.type != "jax"]
            differentiated, flow = _flow([*results.differentiable, *elsewhere], trace)
        result_leaves = results.leaves
        # What only these hold is dropped: it does not outlive the trace.
        del result, results, leaves
        # State that the code created is written like any input, and no output besides.
        state = {id(b) for b in trace.written() if trace.created_here(b) and trace.is_state(b)}
        escaped = trace.escaped(state, held())  # collects garbage, which may hold what was written
        written = trace.written()
        outcome = Outcome(
            trace,
            structure,
            result_leaves,
            outputs,
            others,
            written,
            [buffer.spec for buffer in written],
            escaped,
            differentiated,
            flow,
            objects,
        )
        arrays += [buffer.array for buffer in written]
        alive = [reference() for reference, _ in escaped]
        arrays += [buffer.array for buffer in alive if buffer is not None]
    return arrays, outcome


def _flow(outputs: list[Tensor], trace: CodeTrace) -> tuple[list[Tensor], list[frozenset[int]]]:
    """The leaves that torch's graph of the outputs ends at; for each differentiable output, the indices of its own."""
    differentiable = [t for t in outputs if t.requires_grad]
    ends = ends_of([edge_of(t) for t in differentiable], trace.outer)
    leaves: list[Tensor] = []
    reached: list[list[int]] = [[] for _ in differentiable]
    for edge, starts in ends.items():
        variable = trace.outer.get(edge, getattr(edge[0], "variable", None))
        # The code may create leaves of its own, to differentiate with respect to them.
        if variable is None or (
            is_device_tensor(variable) and trace.created_here(buffer_of(variable))
        ):
            continue
        for i in starts:
            reached[i].append(len(leaves))
        leaves.append(variable)
    flow = [
        frozenset(indices)
        for t, indices in zip(differentiable, reached, strict=True)
        if t.device.type == "jax"
    ]
    return leaves, flow
