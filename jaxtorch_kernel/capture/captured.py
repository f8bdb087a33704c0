"""One run of torch code over tracers, stored as a JAX function.

`capture` runs the code inside `jax.make_jaxpr` without arguments. Every cell that the code reads becomes a constant of
the jaxpr under its own identity (`programs/tracing.py`): an argument, a parameter deep in a module, a tensor in a
closure, the random key. Afterwards each constant is classified:

* the cell of an **argument** becomes an input, filled from the arguments of each call;
* a cell that **outlives the trace** (a parameter, a running statistic, the random key) becomes an input, read at each
  call;
* everything else (a table that the code built, a literal) stays a constant of this program.

The results of the code and the cells that it wrote become outputs. The captured function then has no free variables,
and can be compiled, differentiated and run like any JAX function.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import torch

from ..base import torch_private as private
from ..base.torch_private import pytree
from ..dispatch.read import contiguous_array
from ..programs import tracing
from ..storage import placement
from ..storage.buffer import buffer_of
from .flow import edge_of, ends_of
from .intercepted import intercepted
from .results import Known, Results
from .scopes import named

Tensor = torch.Tensor


@dataclass
class Captured:
    """The result of one trace. `function` takes one array for each of `cells`."""

    jaxpr: Any
    cells: list[Any]  # the inputs' cells: weak references
    constants: list[Any]  # of the jaxpr: an index into `cells`, or the value
    avals: list[jax.ShapeDtypeStruct]
    specs: list[Any]
    structure: Any  # of the result
    leaves: list[
        Any
    ]  # of the result: an Output, a Part, an Alias (`results.py`), or the value itself
    outputs: int  # differentiable ones
    others: int  # results that are not
    written: list[int]  # cells rewritten, in the order of the last outputs
    new_specs: list[Any]
    escaped: list[tuple[Any, Any]]  # (weak reference, spec) of cells that the code made and kept
    trace_seconds: float = 0.0

    def function(self, *arrays: Any) -> tuple[list[Any], list[Any]]:
        """(differentiable outputs, then other outputs and the new arrays of written and created tensors)."""
        constants = [arrays[c] if type(c) is int else c for c in self.constants]
        flat = jax.core.eval_jaxpr(self.jaxpr, constants)
        return flat[: self.outputs], flat[self.outputs :]

    def reusable(self, inputs: list[int]) -> list[int]:
        """Those of `inputs` whose memory an output can reuse; written cells reuse their own."""
        free = Counter((v.aval.shape, v.aval.dtype) for v in self.jaxpr.outvars)
        free.subtract((self.avals[i].shape, self.avals[i].dtype) for i in self.written)
        found = []
        for i in inputs:
            look = self.avals[i].shape, self.avals[i].dtype
            if i not in self.written and free[look] > 0:
                free[look] -= 1
                found.append(i)
        return found

    def reordered(self, order: list[int]) -> Captured:
        """The same function with its inputs in this order."""
        new = {old: i for i, old in enumerate(order)}
        return replace(
            self,
            cells=[self.cells[i] for i in order],
            avals=[self.avals[i] for i in order],
            specs=[self.specs[i] for i in order],
            constants=[new[c] if type(c) is int else c for c in self.constants],
            written=[new[i] for i in self.written],
        )


class Session:
    """State that a trace keeps besides its `Trace`, and restores."""

    def __init__(self, differentiable: bool):
        self.trace = tracing.Trace(differentiable=differentiable, eager=True)
        self.structure: Any = None
        self.leaves: list[Any] = []
        self.outputs = 0
        self.others = 0
        self.written: list[Any] = []
        self.new_specs: list[Any] = []
        self.escaped: list[tuple[Any, Any]] = []
        # The leaves that torch's graph of the outputs ends at, and those places of it that each differentiable output
        # leads to.
        self.differentiated: list[Tensor] = []
        self.flow: list[frozenset[int]] = []


def capture(
    function: Callable[[], Any],
    differentiable: bool,
    gradients: dict[int, tuple[weakref.ref[Tensor], Any]] | None = None,
    known: Callable[[], Iterable[Known]] = tuple,
) -> tuple[Captured, Session]:
    """Run `function` over tracers.

    Args:
        function: torch code whose arguments are already bound.
        differentiable: `jax.vjp` will run through it: tensors that need no gradient are constants to it.
        gradients: leaves and their `.grad` by the leaves' identity; those that are read are added.
        known: returns, at the end of the trace, the tensors that the caller has.
    """
    session = Session(differentiable)
    session.trace.gradients = {} if gradients is None else gradients
    started = time.perf_counter()
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(lambda: _run(function, session, known))()
    seconds = time.perf_counter() - started
    trace = session.trace
    by_constant = {
        id(constant): cell
        for reference, constant in trace.captured
        if (cell := reference()) is not None
    }
    cells: list[Any] = []
    constants: list[Any] = []
    for constant in closed.consts:
        cell = by_constant.get(id(constant))
        if cell is None:
            constants.append(constant)
        else:
            constants.append(len(cells))
            cells.append(cell)
    place = {id(cell): i for i, cell in enumerate(cells)}
    arrays = [c for c in closed.consts if id(c) in by_constant]
    captured = Captured(
        jaxpr=closed.jaxpr,
        cells=[weakref.ref(cell) for cell in cells],
        constants=constants,
        avals=[jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in arrays],
        specs=[cell.spec for cell in cells],
        structure=session.structure,
        leaves=session.leaves,
        outputs=session.outputs,
        others=session.others,
        written=[place[id(cell)] for cell in session.written],
        new_specs=session.new_specs,
        escaped=session.escaped,
        trace_seconds=seconds,
    )
    return captured, session


def placement_of(captured: Captured) -> Any:
    """The placement of the outputs, which is that of the inputs."""
    return captured.specs[0].placement if captured.specs else placement.current()


def _run(
    function: Callable[[], Any], session: Session, known: Callable[[], Iterable[Known]]
) -> list[Any]:
    """The code under the trace; returns the tracers of everything that leaves it."""
    trace = session.trace
    # torch's autograd must run in this thread: the trace is this thread's.
    with (
        tracing.tracing(trace),
        named(trace),
        torch.autograd.set_multithreading_enabled(False),
        private.compiling.held(),
        intercepted.held() if trace.differentiable else nullcontext(),
    ):
        result = function()
        trace.check_refusals()
        leaves, session.structure = pytree.tree_flatten(result)
        results = Results(leaves, trace, known())
        session.leaves = results.leaves
        session.outputs, session.others = len(results.differentiable), len(results.others)
        differentiable, others = (
            map(contiguous_array, results.differentiable),
            map(contiguous_array, results.others),
        )
        read = [*differentiable, *others]
        if trace.differentiable:
            elsewhere = [t for t in leaves if isinstance(t, Tensor) and t.device.type != "jax"]
            _find_leaves([*results.differentiable, *elsewhere], session)
        del result, results, leaves
        session.written = trace.written()
        session.new_specs = [cell.spec for cell in session.written]
        # A cell with a new value must be an input, though nothing read it.
        finals = [cell.array for cell in session.written]
        session.escaped = trace.escaped()
        born = [reference().array for reference, _ in session.escaped]
    return [*read, *finals, *born]


def _find_leaves(outputs: list[Tensor], session: Session) -> None:
    """Note where torch's graph of the outputs ends, and which of them lead there."""
    differentiable = [t for t in outputs if t.requires_grad]
    outer = session.trace.outer
    ends = ends_of([edge_of(t) for t in differentiable], outer)
    reached: list[list[int]] = [[] for _ in differentiable]
    for edge, starts in ends.items():
        variable = outer.get(edge, getattr(edge[0], "variable", None))
        # The code may make leaves of its own, to differentiate by them.
        if variable is not None and not _is_made(variable, session.trace):
            for i in starts:
                reached[i].append(len(session.differentiated))
            session.differentiated.append(variable)
    session.flow = [
        frozenset(own)
        for t, own in zip(differentiable, reached, strict=True)
        if t.device.type == "jax"
    ]


def _is_made(tensor: Tensor, trace: tracing.Trace) -> bool:
    return tensor.device.type == "jax" and trace.bore(buffer_of(tensor))
