"""One traced signature of a step with effects: what its program is run on, and where what it writes goes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..dispatch import watching
from ..dispatch.atomic import give_up, own, run_into
from ..dispatch.results import Fresh, wrap_result
from ..dispatch.stats import Reason
from ..interop.bridge import result_leaf
from ..interop.compiled import Compiled
from ..storage.buffer import Buffer, buffer_of
from .captured import Captured, Output, capture, placement_of
from .cpu_generators import untouched
from .errors import CaptureError
from .guards import Guards
from .optimizers import Optimizers
from .replay import Replay
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


class Step(Replay):
    """A replay that writes: its inputs are the arguments, the cells, and first values (`constants`), in this order."""

    def __init__(
        self,
        captured: Captured,
        places: list[int],
        guards: Guards,
        constants: list[Constant],
        name: str,
    ):
        self.alive = len(captured.cells) - len(constants)  # arguments and cells
        super().__init__(captured, places, guards, self.alive)
        self.constants = constants
        self.name = name
        self.optimizers = Optimizers()
        self.grads: list[Grad] = []
        self.kept: list[Buffer] = []  # made by the code, held by somebody: written at each run
        self.compiled: Any = None
        self._owned: list[int] = []
        self._respecified = True  # whether a write changes a cell's dtype or size
        self._given: list[int] = []
        self._looks: list[Fresh] = []

    def prepare(self, donated: set[int]) -> None:
        """Choose what is donated: all that is written, but for first values that further runs need.

        Args:
            donated: leaves of the call that are given up besides.
        """
        captured = self.captured
        self._given = captured.reusable([i for i, p in enumerate(self.places) if p in donated])
        self._owned = [*(i for i in captured.written if i < self.alive), *self._given]
        firsts = [i for i in captured.written if self.provisional and i >= self.alive]
        # A cell that lives has the spec that it was traced with (`live_cells`).
        old = [captured.specs[i] for i in captured.written]
        self._respecified = old != list(captured.new_specs) or self.provisional
        self.compiled = Compiled(
            captured.function, captured.avals, donated=[*self._owned, *firsts], name=self.name
        )

    def holds(self) -> bool:
        for grad in self.grads:
            if (grad.leaf().grad is not None) is not grad.had:  # type: ignore[union-attr]  # caught in `live_cells`
                return False
        return self.guards.hold() and self.optimizers.hold()

    def changes(self) -> list[Reason]:
        found = super().changes()
        leaves = [(grad.leaf(), grad.had) for grad in self.grads]
        if any(leaf is not None and (leaf.grad is not None) is not had for leaf, had in leaves):
            what = "a tensor had a .grad where it has none, or the reverse"
            found.append(Reason(what, "Call zero_grad() inside the step, as its first line."))
        if not self.optimizers.hold():
            what = "a number of an optimizer's group (weight decay, betas) changed"
            found.append(Reason(what, "Of these numbers the learning rate alone is an operand."))
        return found

    def compile(self) -> None:
        self.compiled.compile()

    def _run(self, leaves: Sequence[Any], cells: list[Any], borrowed: bool) -> Any:
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
        watching.launching(self.compiled.records[""])
        run_into(execute, operands, [*fresh, *written, *self.kept])
        self.compiled.records[""].calls += 1
        if self._respecified:
            for cell, spec in zip(written, captured.new_specs, strict=True):
                cell.spec = spec
        for i in self._given:
            give_up(inputs[i])
        for grad in self.grads:
            leaf = grad.leaf()
            if leaf is not None:
                leaf.grad = grad.after
        arrays = [buffer.array for buffer in fresh]
        if not self._looks:
            self._looks = [result_leaf(array, placement_of(captured)) for array in arrays]

        def tensor(output: Output) -> Tensor:
            place = output.position + (0 if output.differentiable else captured.outputs)
            return wrap_result(self._looks[place], arrays[place], self)

        return self._result(tensor, borrowed)


def trace_step(function: Callable[..., Any], arguments: Arguments, name: str) -> Step:
    """Trace a call for its signature."""
    leaves = arguments.leaves
    args, kwargs = pytree.tree_unflatten(leaves, arguments.structure)
    guards = Guards(function)
    optimizers = Optimizers()
    before = _gradients(guards.tensors(arguments.leaves))
    try:
        reached = [*leaves, *guards.reachable]
        with guards.watching(), optimizers.prepared(), untouched(reached):
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
    step = Step(captured, places, guards, constants, name)
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
