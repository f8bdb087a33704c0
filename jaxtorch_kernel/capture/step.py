"""One traced signature of a step with effects: what its program is run on, and where what it writes goes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..device.rng import Source
from ..dispatch.atomic import own, run_into
from ..dispatch.results import Fresh, wrap_result
from ..interop.bridge import result_leaf
from ..interop.compiled import Compiled
from ..storage import placement
from ..storage.buffer import Buffer, buffer_of
from .captured import Captured, Output, capture
from .errors import CaptureError
from .guards import Guards
from .optimizers import Optimizers
from .signature import Arguments

Tensor = torch.Tensor


class Grad:
    """A leaf whose `.grad` the code set: whether there was one before, and what it was after."""

    def __init__(self, leaf: Tensor, before: Tensor | None, after: Tensor | None):
        self.leaf = weakref.ref(leaf)
        self.had = before is not None
        self.after = after


class Constant:
    """An input that is the same at each run: the first value of a tensor that the code makes and keeps."""

    def __init__(self, cell: Any, value: Any):
        self.cell, self.value = cell, value


class Step:
    """One traced signature of a step.

    The inputs are the arguments' buffers at `places` among the leaves of a call, the cells behind `references`, and
    first values (`constants`), in this order.
    """

    def __init__(
        self,
        captured: Captured,
        places: list[int],
        constants: list[Constant],
        guards: Guards,
        name: str,
    ):
        self.captured = captured
        self.places = places
        self.constants = constants
        self.alive = len(captured.cells) - len(constants)  # arguments and cells
        self.references = captured.cells[len(places) : self.alive]
        self.specs = captured.specs[len(places) : self.alive]
        self.guards = guards
        self.name = name
        self.optimizers = Optimizers()
        self.grads: list[Grad] = []
        self.provisional = False  # made lasting tensors: to be traced again, now that they exist
        self.kept: list[Buffer] = []  # made by the code, held by somebody: written at each run
        self.compiled: Any = None
        self._owned: list[int] = []
        self._sources = [c for r in self.references if isinstance(c := r(), Source)]
        self._results: list[Fresh] = []

    def prepare(self) -> None:
        """Choose what is donated: all that is written, but for first values that further runs need."""
        captured = self.captured
        donated = [i for i in captured.written if self.provisional or i < self.alive]
        self._owned = [i for i in captured.written if i < self.alive]
        self.compiled = Compiled(captured.function, captured.avals, donated=donated, name=self.name)

    def live_cells(self) -> list[Any] | None:
        """The cells to read, or None where the program no longer says what the code would do."""
        cells = [reference() for reference in self.references]
        try:
            if [cell.spec for cell in cells] != self.specs:
                return None
            for grad in self.grads:
                if (grad.leaf().grad is not None) is not grad.had:  # type: ignore[union-attr]  # caught below
                    return None
        except AttributeError:  # a cell or a leaf is gone
            return None
        return cells if self.guards.hold() and self.optimizers.hold() else None

    def run(self, leaves: Sequence[Any], cells: list[Any]) -> Any:
        """Run the program on what the cells hold now, and write back what it wrote."""
        if not self._sources:
            return self._run(leaves, cells)
        with ExitStack() as stack:
            for source in self._sources:  # two threads must not draw from the same key
                stack.enter_context(source.lock)
            return self._run(leaves, cells)

    def _run(self, leaves: Sequence[Any], cells: list[Any]) -> Any:
        captured = self.captured
        for rate in self.optimizers.rates:
            rate.refresh()
        inputs = [leaves[place].untyped_storage().buffer for place in self.places]
        inputs += cells
        for i in self._owned:
            own(inputs[i])
        operands = [cell.array for cell in inputs]
        operands += [constant.value for constant in self.constants]
        execute = self.compiled.forward or self.compiled.compile()
        count = captured.outputs + captured.others
        fresh = [Buffer(None, None) for _ in range(count)]  # type: ignore[arg-type]  # set by the run
        written = [
            inputs[i] if i < self.alive else self.constants[i - self.alive].cell()
            for i in captured.written
        ]
        run_into(execute, operands, [*fresh, *written, *self.kept])
        for cell, spec in zip(written, captured.new_specs, strict=True):
            cell.spec = spec
        for grad in self.grads:
            leaf = grad.leaf()
            if leaf is not None:
                leaf.grad = grad.after
        return self._result([b.array for b in fresh])

    def _result(self, arrays: list[Any]) -> Any:
        if not self._results:
            specs = self.captured.specs
            where = specs[0].placement if specs else placement.current()
            self._results = [result_leaf(array, where) for array in arrays]
        leaves = []
        for leaf in self.captured.leaves:
            if isinstance(leaf, Output):
                place = leaf.position + (0 if leaf.differentiable else self.captured.outputs)
                leaf = wrap_result(self._results[place], arrays[place], self)
            leaves.append(leaf)
        return pytree.tree_unflatten(leaves, self.captured.structure)


def trace_step(function: Callable[..., Any], arguments: Arguments, name: str) -> Step:
    """Trace a call for its signature."""
    leaves = arguments.leaves
    args, kwargs = pytree.tree_unflatten(leaves, arguments.structure)
    guards = Guards(function)
    optimizers = Optimizers()
    before = _gradients(guards.tensors(arguments.leaves))
    try:
        with guards.watching(), optimizers.prepared():
            captured, session = capture(lambda: function(*args, **kwargs), False)
        optimizers.check_rates(session.written)
        after = _gradients(
            [leaf for reference, _ in before.values() if (leaf := reference()) is not None]
        )
    finally:
        for reference, grad in before.values():
            leaf = reference()
            if leaf is not None:
                leaf.grad = grad
    place = {
        id(buffer_of(t)): i
        for i, t in enumerate(leaves)
        if isinstance(t, Tensor) and t.device.type == "jax"
    }
    captured, places, constants = _in_order(captured, session.trace, place)
    if any(i < len(places) and places[i] in arguments.copied for i in captured.written):
        raise CaptureError(
            "the step writes to an argument that is a part of a larger tensor",
            "Pass the whole tensor and take the part inside.",
        )
    step = Step(captured, places, constants, guards, name)
    step.optimizers = optimizers
    step.grads = _changed(before, after)
    step.kept = [reference() for reference, _ in captured.escaped]
    for buffer, (_, spec) in zip(step.kept, captured.escaped, strict=True):
        buffer.spec = spec
    step.provisional = bool(step.kept or constants)
    return step


def _in_order(
    captured: Captured, trace: Any, place: dict[int, int]
) -> tuple[Captured, list[int], list[Constant]]:
    """The inputs sorted: arguments (with their places), cells, first values of what the code made."""
    cells = [reference() for reference in captured.cells]
    own = [place.get(id(cell)) for cell in cells]
    born = [trace.bore(cell) for cell in cells]
    order = sorted(range(len(own)), key=lambda i: (born[i], own[i] is None, own[i] or 0))
    constants = [Constant(captured.cells[i], cells[i].array) for i in order if born[i]]
    places = [p for i in order if (p := own[i]) is not None and not born[i]]
    return captured.reordered(order), places, constants


def _gradients(leaves: list[Tensor]) -> dict[int, tuple[Any, Any]]:
    return {id(t): (weakref.ref(t), t.grad) for t in leaves if t.is_leaf and t.requires_grad}


def _changed(before: dict[int, tuple[Any, Any]], after: dict[int, tuple[Any, Any]]) -> list[Grad]:
    found = []
    for key, (reference, old) in before.items():
        new = after[key][1] if key in after else None
        leaf = reference()
        if leaf is not None and new is not old:
            found.append(Grad(leaf, old, new))
    return found


def same_program(first: Step, second: Step) -> bool:
    """Whether two traces gave the same program, but for where its inputs come from."""
    a, b = first.captured, second.captured
    return (
        first.compiled.forward is not None
        and first.compiled.donated == second.compiled.donated
        and a.written == b.written
        and len(first.kept) == len(second.kept)
        and [(x.shape, x.dtype) for x in a.avals] == [(x.shape, x.dtype) for x in b.avals]
        and str(a.jaxpr) == str(b.jaxpr)
        and _same_constants(a.constants, b.constants)
    )


def _same_constants(first: list[Any], second: list[Any]) -> bool:
    return all(
        x == y if type(x) is int or type(y) is int else np.array_equal(x, y)
        for x, y in zip(first, second, strict=True)
    )
