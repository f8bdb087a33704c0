"""One traced signature of a step with side effects: the inputs of its program, and where its outputs are written."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import jax
import numpy as np
import torch

from ..base.torch_private import pytree
from ..dispatch.results import Fresh, wrap_result
from ..operators.bridge import result_leaf
from ..programs import watching
from ..programs.atomic import TAKEN, mark_donated, own, replaced, run_into
from ..programs.compiled import Compiled
from ..programs.tracing import Untraceable
from ..storage.buffer import Buffer, buffer_of
from .captured import Captured, Session, capture, placement_of
from .cpu_generators import untouched
from .dependencies.guard import Change
from .dependencies.landings import Landing
from .dependencies.record import Record, recording
from .dependencies.recorder import Recorder
from .errors import CaptureError
from .optimizers import Optimizers
from .reach import reachable, tensors_in_reach
from .replay import Replay
from .results import Output
from .sharing import NeedsPlace, check_parts
from .signature import Arguments

Tensor = torch.Tensor


class Grad:
    """A leaf whose `.grad` the code set.

    Attributes:
        leaf: a weak reference.
        had: whether there was one before.
        after: its value afterwards if the code did not create it: None, or a tensor that existed before.
        exchanged: whether the code replaced the old value by `after`. What it creates, each run creates again.
    """

    def __init__(self, leaf: Tensor, before: Tensor | None, after: Tensor | None, made: bool):
        self.leaf = weakref.ref(leaf)
        self.had = before is not None
        self.exchanged = not made and after is not before
        self.after = after if self.exchanged else None
        self.hooks = hooks_of(leaf)

    def set(self, gradient: Tensor | None) -> None:
        """Give the leaf its gradient."""
        leaf = self.leaf()
        if leaf is not None:
            leaf.grad = gradient


def hooks_of(leaf: Tensor) -> tuple[int, ...]:
    """The hooks that torch's engine runs for a leaf, by identity."""
    tables = leaf._backward_hooks, leaf._post_accumulate_grad_hooks
    return tuple(id(hook) for table in tables if table for hook in table.values())


_backward_hooks = attrgetter("_backward_hooks")
_accumulated_hooks = attrgetter("_post_accumulate_grad_hooks")


class Constant:
    """An input that is the same at each run: the first value of a tensor that the code makes and keeps."""

    def __init__(self, cell: Any, value: Any):
        self.cell, self.value = cell, value

    def target(self) -> Any:
        """The cell that the program writes; another one where nobody holds it any more."""
        return self.cell() or Buffer(None, None)  # type: ignore[arg-type]  # set by the run


class Step(Replay):
    """A replay that writes: its inputs are the arguments, the cells, and first values (`constants`), in this order."""

    def __init__(
        self,
        captured: Captured,
        places: list[int],
        record: Record,
        constants: list[Constant],
        name: str,
    ):
        self.alive = len(captured.cells) - len(constants)  # arguments and cells
        super().__init__(captured, places, record, cells=self.alive)
        self.landings = record.landings(captured.escaped)
        self.constants = constants
        self.name = name
        self.optimizers = Optimizers()
        self.grads: list[Grad] = []
        # Of arguments, by their place among the leaves of the call: each run has its own leaf.
        self.argument_grads: dict[int, Grad] = {}
        self.kept: list[Buffer] = []  # made by the code, held by somebody: written at each run
        self.compiled: Any = None
        self._owned: list[int] = []
        self._respecified = True  # whether a write changes a cell's dtype or size
        self._given: list[int] = []
        self._looks: list[Fresh] = []
        self._had: list[bool] = []
        self._is_hooked = False

    def prepare(self, donated: set[int]) -> None:
        """Choose the donated inputs: all that are written, except first values that later runs need.

        Args:
            donated: leaves of the call that are donated as well.
        """
        captured = self.captured
        self._given = captured.reusable([i for i, p in enumerate(self.places) if p in donated])
        self._owned = [*(i for i in captured.written if i < self.alive), *self._given]
        self.sharing.written = self._owned
        firsts = [i for i in captured.written if self.provisional and i >= self.alive]
        # A cell that lives has the spec that it was traced with (`live_cells`).
        old = [captured.specs[i] for i in captured.written]
        self._respecified = old != list(captured.new_specs) or self.provisional
        self.reads_nothing &= not (self.grads or self.optimizers.known)
        self._had = [grad.had for grad in self.grads]
        self._is_hooked = any(grad.hooks for grad in self.grads)
        self.compiled = Compiled(
            captured.function, captured.avals, donated=[*self._owned, *firsts], name=self.name
        )

    def settle(self) -> None:
        """Called when the step is retraced with the state of its first run: it may create no further state.

        Raises:
            CaptureError: if it does.
        """
        if len({landing.output for landing in self.landings}) < len(self.captured.escaped):
            raise CaptureError(
                "each run of the captured code creates a tensor and stores it outside (in an object or a list)",
                "Return it and store it outside.",
            )
        self.provisional = False

    def holds(self) -> bool:
        leaves: list[Any] = [grad.leaf() for grad in self.grads]
        # AttributeError, of a leaf that is gone, is caught in `live_cells`.
        if [leaf.grad is not None for leaf in leaves] != self._had:
            return False
        hooked = any(map(_backward_hooks, leaves)) or any(map(_accumulated_hooks, leaves))
        same = not (hooked or self._is_hooked) or all(
            hooks_of(leaf) == grad.hooks for leaf, grad in zip(leaves, self.grads, strict=True)
        )
        return same and self.guards.hold() and self.optimizers.hold()

    def changes(self) -> list[Change]:
        found = super().changes()
        for grad in self.grads:
            leaf = grad.leaf()
            if leaf is None:
                continue
            path = self.paths.get(id(leaf), "a tensor")
            if (leaf.grad is not None) is not grad.had:
                old, new = ("there", None) if grad.had else (None, "there")
                found.append(Change(f"{path}.grad", old, new))
            elif hooks_of(leaf) != grad.hooks:
                found.append(Change(f"a hook of {path}", "other", "new"))
        return found + self.optimizers.changes()

    def compile(self) -> None:
        self.compiled.compile()

    def _run(self, leaves: Sequence[Any], cells: list[Any], call: Arguments | None) -> Any:
        captured = self.captured
        self.optimizers.refresh()
        inputs = [leaves[place].untyped_storage().buffer for place in self.places]
        inputs += cells
        execute = self.compiled.forward or self.compiled.compile()
        count = captured.outputs + captured.others
        # Set by the run: results, and what the code made and left somewhere.
        fresh = [Buffer(None, None) for _ in range(count)]  # type: ignore[arg-type]
        born = [Buffer(None, None) for _ in captured.escaped]  # type: ignore[arg-type]
        written = [
            inputs[i] if i < self.alive else self.constants[i - self.alive].target()
            for i in captured.written
        ]
        watching.launching(self.compiled.records[""])
        targets = [*fresh, *written, *born]
        while True:
            for i in self._owned:
                own(inputs[i])
            operands = [cell.array for cell in inputs]
            operands += [constant.value for constant in self.constants]
            try:
                run_into(execute, operands, targets)
                break
            except TAKEN:
                if not replaced(inputs, operands):
                    raise
        self.compiled.records[""].calls += 1
        if self._respecified:
            for cell, spec in zip(written, captured.new_specs, strict=True):
                cell.spec = spec
        for i in self._given:
            mark_donated(inputs[i])
        for cell, buffer in zip(self.kept, born, strict=False):
            cell.array = buffer.array
        for place, grad in self.argument_grads.items():
            grad.leaf = weakref.ref((leaves if call is None else call.own)[place])
        for grad in (*self.grads, *self.argument_grads.values()):
            if grad.exchanged:
                grad.set(grad.after)
        for landing in self.landings:
            landing(born[landing.output].array)
        arrays = [buffer.array for buffer in fresh]
        if not self._looks:
            self._looks = [result_leaf(array, placement_of(captured)) for array in arrays]

        def tensor(output: Output) -> Tensor:
            place = output.position + (0 if output.differentiable else captured.outputs)
            return wrap_result(self._looks[place], arrays[place], self)

        return self._result(tensor, leaves, call)


def trace_step(
    function: Callable[..., Any],
    arguments: Arguments,
    name: str,
    donated: set[int],
    again: bool = False,
    rates: bool = True,
) -> Step:
    """Trace a call for its signature.

    Args:
        donated: leaves of the call that are donated, beside what is written.
        again: whether the state created by its first run now exists.
        rates: learning rates are operands, where the optimizers can take them.
    """
    given = arguments.given()
    args, kwargs = pytree.tree_unflatten(given, arguments.structure)
    recorder = Recorder(function)
    optimizers = Optimizers(recorder, rates)
    before = recorder.gradients
    for tensor in tensors_in_reach(function, arguments.leaves):
        if tensor.is_leaf:
            before[id(tensor)] = weakref.ref(tensor), tensor.grad
    reached = [*arguments.leaves, *reachable(function)]
    try:
        with recording(recorder), optimizers.prepared(), untouched(reached, recorder):
            captured, session = capture(
                lambda: recorder.run(args, kwargs),
                False,
                before,
                known=lambda: [*arguments.known(given), *recorder.notes.known()],
            )
            optimizers.check(session.written)
            record = Record(recorder, session.trace.bore, captured.leaves, captured.escaped)
            if recorder.uses_gradients():
                record.tie(arguments.own, recorder)
            step = _step(arguments, captured, session, record, optimizers, recorder, name)
            if step.provisional and again:
                step.settle()
            step.prepare(donated)
    except (CaptureError, Untraceable, jax.errors.ConcretizationTypeError) as error:
        if not optimizers.rates or isinstance(error, NeedsPlace):
            raise
    else:
        return step
    return trace_step(function, arguments, name, donated, again, rates=False)


def _step(
    arguments: Arguments,
    captured: Captured,
    session: Session,
    record: Record,
    optimizers: Optimizers,
    recorder: Recorder,
    name: str,
) -> Step:
    before = recorder.gradients
    # One that the code made, over memory from outside, is gone by now.
    leaves_of = {key: t for key, (leaf, _) in before.items() if (t := leaf()) is not None}
    after = {key: leaf.grad for key, leaf in leaves_of.items()}
    recorder.give_gradients_back()  # the step's cells are looked up now
    place = {
        id(buffer_of(t)): i
        for i, t in enumerate(arguments.leaves)
        if isinstance(t, Tensor) and t.device.type == "jax"
    }
    captured, places, constants = _in_order(captured, session.trace, place, record)
    check_parts(arguments, captured.cells, places, captured.written)
    arguments.check_written({places[i] for i in captured.written if i < len(places)})
    step = Step(captured, places, record, constants, name)
    step.optimizers = optimizers
    made = {id(reference()) for reference, _ in captured.escaped}
    given = {id(t): i for i, t in enumerate(arguments.own) if isinstance(t, Tensor)}
    for key, leaf in leaves_of.items():
        gradient, new = before[key][1], after[key]
        is_made = new is not gradient and new is not None and id(buffer_of(new)) in made
        if new is gradient and not (
            leaf.requires_grad
            and (gradient is not None or optimizers.known or recorder.uses_gradients())
        ):
            continue
        grad = Grad(leaf, gradient, new, is_made)
        if key in given and key not in recorder.tensors and gradient is None and not grad.hooks:
            record.bare.append(given[key])
            step.argument_grads[given[key]] = grad
        else:
            step.grads.append(grad)
            if key in given:
                record.tied.append((given[key], grad.leaf))
        if is_made and new is not None:
            step.landings.append(Landing(grad.set, new, captured.escaped))
    landed = {landing.output for landing in step.landings}
    step.kept = [reference() for reference, _ in captured.escaped]
    for buffer, (_, spec) in zip(step.kept, captured.escaped, strict=True):
        buffer.spec = spec
    # What each run makes anew from its first value is no state that lasts.
    remade = {id(captured.escaped[i][0]()) for i in landed}
    lasting = [c for c in constants if id(c.cell()) not in remade]
    step.provisional = bool(lasting) or len(landed) < len(captured.escaped)
    record.forget()
    return step


def _in_order(
    captured: Captured, trace: Any, place: dict[int, int], record: Record
) -> tuple[Captured, list[int], list[Constant]]:
    """The inputs sorted: arguments (with their places), cells, first values of what the code made."""
    cells = [reference() for reference in captured.cells]
    own = [place.get(id(cell)) for cell in cells]
    born = [trace.bore(cell) for cell in cells]
    order = sorted(
        range(len(own)),
        key=lambda i: (born[i], own[i] is None, own[i] or 0, not record.is_named(cells[i])),
    )
    constants = [Constant(captured.cells[i], cells[i].array) for i in order if born[i]]
    places = [p for i in order if (p := own[i]) is not None and not born[i]]
    return captured.reordered(order), places, constants


def same_program(first: Step, second: Step) -> bool:
    """Whether two traces gave the same program, apart from where its inputs come from."""
    a, b = first.captured, second.captured
    return (
        first.compiled.forward is not None
        and first.compiled.donated == second.compiled.donated
        and a.written == b.written
        and len(a.escaped) == len(b.escaped)
        and [(x.shape, x.dtype) for x in a.avals] == [(x.shape, x.dtype) for x in b.avals]
        and str(a.jaxpr) == str(b.jaxpr)
        and _same_constants(a.constants, b.constants)
    )


def _same_constants(first: list[Any], second: list[Any]) -> bool:
    return all(
        x == y if type(x) is int or type(y) is int else _same_bytes(np.asarray(x), np.asarray(y))
        for x, y in zip(first, second, strict=True)
    )


def _same_bytes(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    """Equal to the last bit: 0.0 is not -0.0."""
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
