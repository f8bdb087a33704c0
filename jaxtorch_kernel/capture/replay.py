"""One traced signature and its runs: where its inputs are, whether its guards hold, what it returns.

Before a run, `live_buffers` reads the buffers that the program takes besides its arguments, and checks all that the
trace depended on: specs, memory layouts, requires_grad flags, shared memory and guards. If a check fails it returns
None, and the call is retraced. `run` then takes the arguments' buffers and these, and returns the result of the code
with new tensors for its outputs. What the program does with the buffers is up to the subclass: `Entry` (`entry.py`)
adds a node to torch's graph, `Step` (`step.py`) writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from operator import attrgetter, call
from typing import Any, cast
from weakref import ref

import torch

from ..base.torch_private import pytree
from ..programs.rng import RandomKey
from ..storage import moves
from ..storage.buffer import Buffer, Spec
from .captured import Captured
from .dependencies.computed import Computed
from .dependencies.effects import layout_of
from .dependencies.guard import Change
from .dependencies.previous import release
from .dependencies.record import Record
from .dependencies.slots import Slot
from .dependencies.tokens import Phrase, look
from .dependencies.varied import varied
from .quick import STALE, CallOf, buffers_of
from .results import Alias, Output, OutputView, as_class
from .sharing import Sharing
from .signature import Arguments, Leaves

Tensor = torch.Tensor


_storage_of = Tensor.untyped_storage
_buffer_of, _spec_of, _flag_of = map(attrgetter, ("buffer", "spec", "requires_grad"))
# Raised by reading a buffer through a dead weak reference (None), or through a container that has lost its tensor.
_NO_LONGER_EXISTS = AttributeError, TypeError, IndexError


def _nothing() -> None:
    pass


class Replay(ABC):
    """A captured program and where its inputs come from.

    Args:
        captured: the captured function; its inputs are the arguments' buffers, then those read by name.
        indices: the index of each argument among the leaves of a call.
        record: what the trace depended on, and what it did to Python state.
        donated: inputs that are donated besides those that the program writes.
        count: how many of the captured buffers are read at each run, the arguments' included; all by default.

    Attributes:
        undo: restores the Python state that the trace changed, if no run follows the trace.
        state: what the traced call depended on (`retraces.py`).
        provisional: whether the trace created lasting tensors, so that the next call must be retraced.
        reads_nothing: whether the program depends on its arguments alone, so that it is valid forever.
        only: the output that is the whole result, if the code returned one new tensor and no container.
    """

    undo: Callable[[], None] = staticmethod(_nothing)
    state: dict[str, object] | None = None
    provisional = False

    def __init__(
        self,
        captured: Captured,
        indices: list[int],
        record: Record,
        donated: Sequence[int] = (),
        count: int | None = None,
    ):
        self.captured = captured
        self.indices = indices
        self.guards = record.guards
        self.again, self.held = record.repeats, record.held
        self.host_numbers = record.host_numbers
        self.undo = record.undo
        self.paths = record.paths
        references = record.buffers.split(captured.buffers[len(indices) : count])
        self.tensors, self.references, self._first = references
        self.flags = [
            t().requires_grad if (flag := record.flags.get(id(t()))) is None else flag  # type: ignore[union-attr]  # alive
            for t in (self.tensors if record.differentiates else ())
        ]
        self._flagged = record.flagged  # tensors whose requires_grad the code reads
        self._flags = list(map(_flag_of, map(call, self._flagged)))
        self.specs = captured.specs[len(indices) : count]
        self._layouts = record.layouts
        # `moves.count`, and the buffers of the tensors at that time.
        self._latest: tuple[int, list[ref[Buffer]]] = -1, []
        self.reads_nothing = self.guards.is_bare and not (self.tensors or self.references)
        only = captured.leaves[0] if captured.structure.is_leaf() else None
        self.only = only if isinstance(only, Output) and only.cls is Tensor else None
        alive = [buffer for reference in captured.buffers[:count] if (buffer := reference())]
        written = [i for i in (*captured.written, *donated) if i < len(alive)]
        self.sharing = Sharing(alive, indices, written, record)
        self.reflagged, self.rebound = record.reflagged, record.rebound
        self.sources = [b for r in self.references if isinstance(b := r(), RandomKey)]

    def _tensor_buffers(self) -> list[Buffer]:
        """The buffers of the tensors that are read by name. Raises AttributeError if one no longer exists."""
        tensors: Iterator[Any] = map(call, self.tensors)  # None if one is gone
        return list(map(_buffer_of, map(_storage_of, tensors)))

    def _other_buffers(self) -> list[Buffer]:
        """The other buffers that are read: those of slots that each run rebinds, and the random key."""
        # A slot whose tensor has changed gives None, which has no spec: `live_buffers` sees that.
        return cast(list[Buffer], [reference() for reference in self.references])

    def _tensor_buffers_in_layout(self) -> list[Buffer] | None:
        """The buffers of the tensors that are read by name; None if the memory layout of one has changed.

        They are those of the last run if no tensor of the process has got other memory since (`storage/moves.py`).
        Raises an error of `_NO_LONGER_EXISTS` if a tensor no longer exists.
        """
        count, latest = self._latest
        if count == moves.count:
            # One may be gone: then it is None, and reading its spec raises an error of `_NO_LONGER_EXISTS`.
            return list(map(call, latest))  # type: ignore[arg-type]
        count = moves.count
        buffers = self._tensor_buffers()
        if any(self._moved()):
            return None
        self._latest = count, list(map(ref, buffers))
        return buffers

    def _moved(self) -> Iterator[Change]:
        """The tensors whose memory layout differs from that in the trace."""
        for path, reference, layout in self._layouts:
            tensor = reference()
            if tensor is not None and layout_of(tensor) != layout:
                (size, *_, dtype), now = layout, look(tensor)
                old = now._replace(shape=size, dtype=dtype)
                new = now if old != now else Phrase("has a different memory layout")
                yield Change(path, old, new)

    def quick_call(self, specs: list[Spec]) -> CallOf:
        """A function that runs a call whose tensors `Quick.matches` accepts.

        The function refers to the replay, so the replay must not refer to it.

        Args:
            specs: the specs of the arguments' buffers.
        """

        def call_of(args: tuple[Any, ...]) -> Any:
            buffers = self.live_buffers() if buffers_of(args, specs) is not None else None
            if buffers is None or not self.sharing.arguments_agree(args, buffers):
                return STALE
            result = self.run(args, buffers)
            for again in self.again:
                again()
            return result

        return call_of

    def first_buffers(self) -> list[Buffer]:
        """The buffers that the traced call read. Its code may have stored other tensors under their names since."""
        buffers, self._first = self._first, []
        return cast(list[Buffer], buffers)

    def live_buffers(self) -> list[Buffer] | None:
        """The buffers to read besides the arguments', or None if the program is not valid for the present state."""
        if self.reads_nothing:
            return []
        try:
            buffers = self._tensor_buffers_in_layout()
            if buffers is None:
                return None
            buffers += self._other_buffers()
            if list(map(_spec_of, buffers)) != self.specs or not self.sharing.names_agree(buffers):
                return None
            if self.flags and list(map(_flag_of, map(call, self.tensors))) != self.flags:
                return None
            if self._flagged and list(map(_flag_of, map(call, self._flagged))) != self._flags:
                return None
        except _NO_LONGER_EXISTS:
            return None
        try:
            return buffers if self.holds() else None
        except AttributeError:  # an object that a guard reads no longer exists
            return None

    def may_hold_again(self) -> bool:
        """Whether its guards may hold again later: everything that it reads still exists, only some value differs."""
        try:
            same = list(map(_spec_of, self._tensor_buffers() + self._other_buffers())) == self.specs
            return same and not self.provisional and not self.guards.gone
        except _NO_LONGER_EXISTS:
            return False

    def holds(self) -> bool:
        """Whether the guards hold."""
        return self.guards.hold()

    def varied(self) -> list[Slot]:
        """The slots that the guards expect other numbers in."""
        return varied(self.guards)

    def changes(self) -> list[Change]:
        """The changes for which `live_buffers` returns None or `holds` returns False."""
        changes = [*self.guards.changes(), *self._moved()]
        flags = [
            *zip(self.tensors, self.flags, strict=False),
            *zip(self._flagged, self._flags, strict=True),
        ]
        for reference, flag in flags:
            tensor = reference()
            if tensor is not None and tensor.requires_grad != flag:
                old = look(tensor)._replace(requires_grad=flag)
                change = Change(self.paths.get(id(tensor), "a tensor"), old, look(tensor))
                changes += [] if change in changes else [change]
        try:
            specs = list(map(_spec_of, self._tensor_buffers() + self._other_buffers()))
        except _NO_LONGER_EXISTS:
            changes.append(Change("a tensor that it read", "there", None))
            return changes
        for old_spec, spec in zip(self.specs, specs, strict=True):
            if spec != old_spec:
                changes.append(Change("a tensor that it reads", old_spec, spec))
        return changes

    def undo_trace(self) -> bool:
        """Restore the Python state that the trace changed. Called if no run follows the trace.

        Returns:
            Whether the program is that of the state now, and can be kept.
        """
        undo, self.undo = self.undo, _nothing
        undo()
        release(self.held)
        if self.host_numbers is not None:
            self.host_numbers.restore()
        return True

    def inputs_of_outputs(self) -> list[int | None]:
        """For each output of the program, the input that it is the new value of, or None."""
        captured = self.captured
        first, last = captured.outputs + captured.others, len(captured.escaped)
        return [*[None] * first, *captured.written, *[None] * last]

    @abstractmethod
    def compile(self) -> None:
        """Compile everything that a run needs, so that the run itself compiles nothing."""

    def run(self, leaves: Leaves, named: list[Buffer], call: Arguments | None = None) -> Any:
        """Run the compiled program for a call, and return what the code returned.

        Args:
            leaves: the leaves that the program takes.
            named: the buffers from `live_buffers`.
            call: the arguments, if `leaves` may differ from the leaves that the caller passed.
        """
        is_own = self.undo is not _nothing
        self.undo = _nothing  # it refers to objects from before the trace
        if is_own:  # the run of the traced call, whose code has assigned everything already
            try:
                return self._run_with_effects(leaves, named, call)
            finally:
                release(self.held)
        try:
            for held in self.held:
                held.hold()
            return self._run_with_effects(leaves, named, call)
        except BaseException:
            release(self.held)
            raise

    def _run_with_effects(self, leaves: Leaves, named: list[Buffer], call: Arguments | None) -> Any:
        if self.host_numbers is not None:
            self.host_numbers.refresh()
        for index, flag in self.reflagged:
            (leaves if call is None else call.caller_leaves)[index].requires_grad_(flag)
        for index, slot in self.rebound:
            slot.set((leaves if call is None else call.caller_leaves)[index])
        if not self.sources:
            return self._run(leaves, named, call)
        with ExitStack() as stack:
            for source in self.sources:  # two threads must not draw from the same key
                stack.enter_context(source.locked())
            return self._run(leaves, named, call)

    @abstractmethod
    def _run(self, leaves: Leaves, named: list[Buffer], call: Arguments | None) -> Any:
        """Run the program for a call while the random keys that it draws from are locked."""

    def _result(
        self,
        tensor_of: Callable[[Output], Tensor],
        leaves: Leaves,
        call: Arguments | None,
    ) -> Any:
        """What the code returned, with this run's tensors."""
        borrowed = call is not None and call.borrowed
        if self.only is not None and not borrowed:
            return tensor_of(self.only)
        passed = leaves if call is None else call.caller_leaves
        # By the identity of the Output: one that the code returned twice is one tensor.
        tensors: dict[int, Tensor] = {}

        def tensor(output: Output) -> Tensor:
            if id(output) not in tensors:
                result = tensor_of(output).cpu() if borrowed else tensor_of(output)
                tensors[id(output)] = as_class(result, output.cls)
            return tensors[id(output)]

        results = []
        for leaf in self.captured.leaves:
            if isinstance(leaf, Output):
                leaf = tensor(leaf)
            elif isinstance(leaf, Computed):
                leaf = leaf.latest
            elif isinstance(leaf, OutputView):
                leaf = leaf.view.of(tensor(leaf.output))
            elif isinstance(leaf, Alias):
                leaf = leaf.of(passed)
            elif isinstance(leaf, Tensor) and not leaf.requires_grad:
                leaf = leaf.clone()  # a constant of the trace: the caller may write to its copy
            results.append(leaf)
        structure, fresh = self.captured.structure, self.captured.fresh
        if fresh is not None:
            fresh.fill(results, results[structure.num_leaves :])
            del results[structure.num_leaves :]
        return pytree.tree_unflatten(results, structure)
