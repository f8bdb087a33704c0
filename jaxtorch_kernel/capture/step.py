"""The replay of a `jit` function: its program writes, and the old arrays are donated to it.

The inputs of the program are the arguments, then the buffers read by name, then initial values of tensors that the code
creates and keeps (optimizer state). A run gives new arrays to all buffers that the code wrote. It also repeats what the
code did to the `.grad` of leaves: a gradient that the code created is created by each run; one that it only removed or
exchanged is removed or exchanged again (`GradientChange`).
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import torch

from ..base.jax_private import FAILURES
from ..dispatch.results import Fresh, wrap_result
from ..operators.bridge import result_leaf
from ..programs import watching
from ..programs.atomic import (
    ensure_unshared,
    kept_if_checked,
    mark_donated,
    receiver,
    run_into,
    was_replaced,
)
from ..programs.compiled import CompiledFunction
from ..programs.donation import is_worth_donating
from ..programs.errors import explain_call
from ..programs.writes import DONATED_ERRORS
from ..storage.buffer import Buffer
from .captured import Captured, placement_of, respecify
from .dependencies.guard import Change
from .dependencies.record import Record
from .dependencies.slots import Slot
from .errors import CaptureError
from .gradient_changes import GradientChange, any_hooks, hooks_of
from .optimizers import Optimizers
from .replay import Replay
from .results import Output
from .signature import Arguments, Leaves

Tensor = torch.Tensor


class InitialValue:
    """An input that is the same at each run: the initial value of a tensor that the code creates and keeps."""

    def __init__(self, buffer: weakref.ref[Buffer], value: jax.Array):
        self.buffer, self.value = buffer, value

    def target(self) -> Buffer:
        """The buffer that the program writes; a temporary one if nothing refers to the tensor any more."""
        return self.buffer() or receiver()


class Step(Replay):
    """A replay that writes.

    Args:
        captured, indices, record: as for `Replay`.
        initial: the inputs that are initial values, which come last.
        name: the name of the program.

    Attributes:
        live: the number of the other inputs, which each run reads from buffers.
        gradients: the leaves read by name whose `.grad` the code set.
        gradients_of_arguments: the same for arguments, by their index: each run has another leaf.
        created: buffers that the trace created and stored outside itself: the first run writes to them.
    """

    def __init__(
        self,
        captured: Captured,
        indices: list[int],
        record: Record,
        initial: list[InitialValue],
        name: str,
    ):
        self.live = len(captured.buffers) - len(initial)
        super().__init__(captured, indices, record, count=self.live)
        self.landings = record.landings(captured.escaped)
        self.initial = initial
        self.name = name
        self.optimizers = Optimizers()
        self.gradients: list[GradientChange] = []
        self.gradients_of_arguments: dict[int, GradientChange] = {}
        self.created: list[Buffer] = []
        self.compiled: CompiledFunction
        self._donated: list[int] = []
        self._respecified = True  # whether a write changes a buffer's dtype or size
        self._donated_arguments: list[int] = []
        self._layouts_of_results: list[Fresh] = []
        self._minds: list[GradientChange] = []  # those whose leaf must have a gradient, or none
        self._had_gradients: list[bool | None] = []
        self._is_hooked = False

    def prepare(self, donated: set[int]) -> None:
        """Choose the donated inputs: all that are written, except initial values that later runs need.

        Args:
            donated: leaves of the call that are donated as well.
        """
        captured = self.captured
        self._donated_arguments = captured.reusable(
            [i for i, p in enumerate(self.indices) if p in donated]
        )
        written = [i for i in captured.written if i < self.live]
        self.sharing.written = [*written, *self._donated_arguments]
        worth = [i for i in written if is_worth_donating(captured.avals[i])]
        self._donated = [*worth, *self._donated_arguments]
        # A provisional step runs once, so nothing needs its initial values afterwards.
        initial = [i for i in captured.written if self.provisional and i >= self.live]
        # A buffer that is read has the spec that it was traced with (`live_buffers`).
        old = [captured.specs[i] for i in captured.written]
        self._respecified = old != list(captured.new_specs) or self.provisional
        self.reads_nothing &= not (self.gradients or self.optimizers.used)
        self._minds = [grad for grad in self.gradients if grad.had is not None]
        self._had_gradients = [grad.had for grad in self._minds]
        self._is_hooked = any(grad.hooks for grad in self.gradients)
        self.compiled = CompiledFunction(
            captured.writing_first,
            captured.avals,
            donated=[*self._donated, *initial],
            name=self.name,
            input_names=captured.names,
            meshes=captured.meshes,
        )
        self.compiled.cause.roles = captured.roles_by_name()

    def state_buffers(self) -> list[Buffer]:
        """The buffers whose initial values the program takes, if they still exist."""
        return [buffer for value in self.initial if (buffer := value.buffer()) is not None]

    def inputs_of_outputs(self) -> list[int | None]:
        captured = self.captured
        others = captured.outputs + captured.others + len(captured.escaped)
        return [*captured.written, *[None] * others]

    def undo_trace(self) -> bool:
        super().undo_trace()
        return not self.optimizers.undo_state()

    def settle(self, creates_state: bool) -> None:
        """Accept the step, which was retraced with the state that its first run created, as its final program.

        Args:
            creates_state: whether it creates state of an optimizer once more.

        Raises:
            CaptureError: if it creates further state.
        """
        if creates_state:
            raise CaptureError(
                "each run of the captured code creates an optimizer's state (its momentum, its step count)",
                "Create the optimizer once, before the captured code.",
            )
        landed = {landing.output for landing in self.landings}
        if len(landed) < len(self.captured.escaped):
            raise CaptureError(
                "each run of the captured code computes a tensor and stores it outside, in an object or a list",
                "Return it and store it outside, or keep the tensor and write to it (`state.copy_(new)`).",
                *self.captured.line_of_escaped(landed),
            )
        self.provisional = False

    def holds(self) -> bool:
        # A leaf that no longer exists is None; the AttributeError is caught in `live_buffers`.
        if [grad.leaf().grad is not None for grad in self._minds] != self._had_gradients:  # type: ignore[union-attr]  # as above
            return False
        leaves: list[Any] = [grad.leaf() for grad in self.gradients]
        same = not (any_hooks(leaves) or self._is_hooked) or all(
            hooks_of(leaf) == grad.hooks for leaf, grad in zip(leaves, self.gradients, strict=True)
        )
        return same and self.guards.hold() and self.optimizers.hold()

    def varied(self) -> list[Slot]:
        return super().varied() + self.optimizers.varied()

    def changes(self) -> list[Change]:
        changes = super().changes()
        for grad in self.gradients:
            leaf = grad.leaf()
            if leaf is None:
                continue
            path = self.paths.get(id(leaf), "a tensor")
            if grad.had is not None and (leaf.grad is not None) is not grad.had:
                old, new = ("there", None) if grad.had else (None, "there")
                changes.append(Change(f"{path}.grad", old, new))
            elif hooks_of(leaf) != grad.hooks:
                changes.append(Change(f"a hook of {path}", "other", "new"))
        return changes + self.optimizers.changes()

    def compile(self) -> None:
        self.compiled.compile()

    def _run(self, leaves: Leaves, named: list[Buffer], call: Arguments | None) -> Any:
        captured = self.captured
        self.optimizers.refresh()
        inputs = [leaves[index].untyped_storage().buffer for index in self.indices]
        inputs += named
        # Set by the run: results, and tensors that the code created and stored outside itself.
        results = [receiver() for _ in range(captured.outputs + captured.others)]
        created = [receiver() for _ in captured.escaped]
        written = [
            inputs[i] if i < self.live else self.initial[i - self.live].target()
            for i in captured.written
        ]
        self._execute(inputs, [*written, *results, *created])
        self._update_buffers(inputs, written, created)
        self._update_gradients(leaves if call is None else call.caller_leaves)
        for landing in self.landings:
            landing(created[landing.output].array, self.compiled.on_mesh)
        arrays = [buffer.array for buffer in results]
        if self.compiled.on_mesh:
            self._layouts_of_results = [result_leaf(array, array.sharding) for array in arrays]
        elif not self._layouts_of_results:
            where = placement_of(captured)
            self._layouts_of_results = [result_leaf(array, where) for array in arrays]

        def tensor(output: Output) -> Tensor:
            i = output.position + (0 if output.differentiable else captured.outputs)
            return wrap_result(self._layouts_of_results[i], arrays[i], self)

        return self._result(tensor, leaves, call)

    def _execute(self, inputs: list[Buffer], targets: list[Buffer]) -> None:
        """Run the program, which sets the arrays of `targets`."""
        execute = self.compiled.forward or self.compiled.compile()
        record = self.compiled.records[""]
        watching.launching(record)
        while True:
            for i in self._donated:
                ensure_unshared(inputs[i])
            operands = [buffer.array for buffer in inputs]
            operands += [initial.value for initial in self.initial]
            try:
                run_into(execute, kept_if_checked(operands, self._donated), targets)
                break
            except DONATED_ERRORS as error:
                if was_replaced(inputs, operands):
                    continue
                if not isinstance(error, FAILURES):
                    raise
                raise explain_call(error, self.name, inputs) from None
        record.calls += 1

    def _update_buffers(
        self, inputs: list[Buffer], written: list[Buffer], created: list[Buffer]
    ) -> None:
        """Give the buffers the specs of their new arrays, and those of the trace their first values."""
        if self._respecified:
            for buffer, spec in zip(written, self.captured.new_specs, strict=True):
                buffer.spec = spec
        for i in self._donated_arguments:
            mark_donated(inputs[i])
        for buffer, new in zip(self.created, created, strict=False):
            buffer.array = new.array
        if self.compiled.on_mesh:
            respecify((*written, *self.created))
        self.created = []  # later runs create others, and those of the trace may be discarded

    def _update_gradients(self, arguments: Leaves) -> None:
        """Do to the `.grad` of leaves what the code did."""
        for index, grad in self.gradients_of_arguments.items():
            grad.leaf = weakref.ref(arguments[index])
        for grad in (*self.gradients, *self.gradients_of_arguments.values()):
            if grad.exchanged:
                grad.set(grad.after)
