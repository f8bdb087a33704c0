"""One traced signature and its runs: where its inputs are, whether its guards hold, what it returns."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from operator import attrgetter, call
from typing import Any
from weakref import ref

import torch

from ..base.torch_private import pytree
from ..programs.rng import Source
from ..storage import moves
from ..storage.buffer import Spec
from .captured import Captured
from .dependencies.effects import layout_of
from .dependencies.guard import Change
from .dependencies.record import Record
from .dependencies.tokens import Said, look
from .quick import STALE, buffers_of
from .results import Alias, Output, Part, as_class
from .sharing import Sharing
from .signature import Arguments

Tensor = torch.Tensor


_storage_of = Tensor.untyped_storage
_buffer_of, _spec_of, _flag_of = map(attrgetter, ("buffer", "spec", "requires_grad"))
# What None in the place of a tensor or a cell raises, and a table that has lost one.
_GONE = AttributeError, TypeError, IndexError


def _nothing() -> None:
    pass


class Replay(ABC):
    """A captured program and where its inputs come from.

    Args:
        captured: what the trace found; its inputs are the arguments' buffers, then `references`' cells.
        places: of the arguments, among the leaves of a call.
        record: what the trace depended on, and what it did to Python state.
        given: inputs whose memory the program takes, beside what it writes.
        cells: how many of the captured cells are read at each run, the arguments' included; all by default.
    """

    # Takes back what the trace did to Python state, where no run follows it.
    undo: Callable[[], None] = staticmethod(_nothing)
    state: dict[str, Any] | None = None  # what the call that was traced looked like
    provisional = False  # made lasting tensors: to be traced again, now that they exist

    def __init__(
        self,
        captured: Captured,
        places: list[int],
        record: Record,
        given: Sequence[int] = (),
        cells: int | None = None,
    ):
        self.captured = captured
        self.places = places
        self.guards = record.guards
        self.again = record.again
        self.undo = record.undo
        self.paths = record.paths
        found = record.references(captured.cells[len(places) : cells])
        self.tensors, self.references, self._first = found
        self.flags = [
            t().requires_grad if (flag := record.flags.get(id(t()))) is None else flag  # type: ignore[union-attr]  # alive
            for t in (self.tensors if record.differentiates else ())
        ]
        self._flagged = record.flagged  # tensors whose flag the code reads
        self._flags = list(map(_flag_of, map(call, self._flagged)))
        self._fresh = {i for i, leaf in enumerate(captured.leaves) if id(leaf) in record.fresh}
        self.specs = captured.specs[len(places) : cells]
        self._layouts = record.layouts
        self._kept: tuple[int, list[Any]] = (
            -1,
            [],
        )  # `moves.count`, and the cells of the tensors at that time
        # Beside its arguments: it holds for good.
        self.reads_nothing = self.guards.is_bare and not (self.tensors or self.references)
        # One tensor and nothing around it: a step's loss, a module's output.
        only = captured.leaves[0] if captured.structure.is_leaf() else None
        self.single = isinstance(only, Output) and only.cls is Tensor
        alive = [cell() for cell in captured.cells[:cells]]
        written = [i for i in (*captured.written, *given) if i < len(alive)]
        self.sharing = Sharing(alive, places, written, record)
        self.reflagged, self.rebound = record.reflagged, record.rebound
        self.sources = [c for r in self.references if isinstance(c := r(), Source)]

    def _cells(self) -> list[Any]:
        """The cells of the tensors that are read by name. Raises AttributeError where one is gone."""
        alive: Any = map(call, self.tensors)
        return list(map(_buffer_of, map(_storage_of, alive)))

    def _bound(self) -> list[Any]:
        """The other cells: those of slots that each run rebinds, and the random key."""
        return [reference() for reference in self.references]

    def _cells_of_tensors(self) -> list[Any] | None:
        """The cells of the tensors that are read by name; None where one of these lies in memory in another way.

        They are those of the last run, where no tensor of the process has moved since. Raises what `_GONE` lists where
        one is gone.
        """
        count, kept = self._kept
        if count == moves.count:
            return list(map(call, kept))
        count = moves.count
        cells = self._cells()
        if any(self._moved()):
            return None
        self._kept = count, list(map(ref, cells))
        return cells

    def _moved(self) -> Iterator[Change]:
        """The tensors that lie in memory in another way than in the trace."""
        for path, reference, layout in self._layouts:
            tensor = reference()
            if tensor is not None and layout_of(tensor) != layout:
                (size, *_, dtype), now = layout, look(tensor)
                old = now._replace(shape=size, dtype=dtype)
                new = now if old != now else Said("has a different memory layout")
                yield Change(path, old, new)

    def quick_call(self, specs: list[Spec]) -> Callable[[tuple[Any, ...]], Any]:
        """Runs a call of tensors that `Quick.matches` knows. It refers to the replay, which must not keep it.

        Args:
            specs: of the arguments' buffers.
        """

        def call_of(args: tuple[Any, ...]) -> Any:
            cells = self.live_cells() if buffers_of(args, specs) is not None else None
            if cells is None or not self.sharing.arguments_agree(args, cells):
                return STALE
            result = self.run(args, cells)
            for again in self.again:
                again()
            return result

        return call_of

    def take_first(self) -> list[Any]:
        """The cells of the call that was traced: its code may have put other tensors in their places since."""
        cells, self._first = self._first, []
        return cells

    def live_cells(self) -> list[Any] | None:
        """The cells to read, or None where the program no longer says what the code would do."""
        if self.reads_nothing:
            return []
        try:
            cells = self._cells_of_tensors()
            if cells is None:
                return None
            cells += self._bound()
            if list(map(_spec_of, cells)) != self.specs or not self.sharing.cells_agree(cells):
                return None
            if self.flags and list(map(_flag_of, map(call, self.tensors))) != self.flags:
                return None
            if self._flagged and list(map(_flag_of, map(call, self._flagged))) != self._flags:
                return None
        except _GONE:
            return None
        try:
            return cells if self.holds() else None
        except AttributeError:  # what it asks is gone
            return None

    def waits(self) -> bool:
        """Whether its guards may hold again: everything that it reads still exists, though some value differs."""
        try:
            same = list(map(_spec_of, self._cells() + self._bound())) == self.specs
            return same and not self.provisional and not self.guards.gone
        except _GONE:
            return False

    def holds(self) -> bool:
        """Whether what the trace depended on is as it was."""
        return self.guards.hold()

    def changes(self) -> list[Change]:
        """Why `live_cells` or `holds` says no."""
        found = [*self.guards.changes(), *self._moved()]
        flags = [
            *zip(self.tensors, self.flags, strict=False),
            *zip(self._flagged, self._flags, strict=True),
        ]
        for reference, flag in flags:
            tensor = reference()
            if tensor is not None and tensor.requires_grad != flag:
                old = look(tensor)._replace(requires_grad=flag)
                change = Change(self.paths.get(id(tensor), "a tensor"), old, look(tensor))
                found += [] if change in found else [change]
        try:
            specs = list(map(_spec_of, self._cells() + self._bound()))
        except _GONE:
            found.append(Change("a tensor that it read", "there", None))
            return found
        for old_spec, spec in zip(self.specs, specs, strict=True):
            if spec != old_spec:
                found.append(Change("a tensor that it reads", old_spec, spec))
        return found

    def take_back(self) -> None:
        """Give Python state back what the trace changed: no run follows it."""
        undo, self.undo = self.undo, _nothing
        undo()

    @abstractmethod
    def compile(self) -> None:
        """Compile what a run will need, so that the run itself only runs."""

    def run(self, leaves: Sequence[Any], cells: list[Any], call: Arguments | None = None) -> Any:
        """The call, by the compiled program.

        Args:
            leaves: of the call, as the program takes them.
            cells: what `live_cells` gave.
            call: the arguments, where the caller's own leaves may be others.
        """
        self.undo = _nothing  # it holds what was there before the trace
        for place, flag in self.reflagged:
            (leaves if call is None else call.own)[place].requires_grad_(flag)
        for place, slot in self.rebound:
            slot.set((leaves if call is None else call.own)[place])
        if not self.sources:
            return self._run(leaves, cells, call)
        with ExitStack() as stack:
            for source in self.sources:  # two threads must not draw from the same key
                stack.enter_context(source.held())
            return self._run(leaves, cells, call)

    @abstractmethod
    def _run(self, leaves: Sequence[Any], cells: list[Any], call: Arguments | None) -> Any:
        """The call, where nobody else draws random numbers meanwhile."""

    def _result(
        self,
        tensor_of: Callable[[Output], Tensor],
        leaves: Sequence[Any],
        call: Arguments | None,
    ) -> Any:
        """What the code returned, with this run's tensors."""
        borrowed = call is not None and call.borrowed
        if self.single and not borrowed:
            return tensor_of(self.captured.leaves[0])
        own = leaves if call is None else call.own
        made: dict[
            int, Tensor
        ] = {}  # by the identity of the Output: one that is there twice is one tensor

        def tensor(output: Output) -> Tensor:
            if id(output) not in made:
                result = tensor_of(output).cpu() if borrowed else tensor_of(output)
                made[id(output)] = as_class(result, output.cls)
            return made[id(output)]

        results = []
        for i, leaf in enumerate(self.captured.leaves):
            if i in self._fresh:
                leaf = copy.deepcopy(leaf)
            elif isinstance(leaf, Output):
                leaf = tensor(leaf)
            elif isinstance(leaf, Part):
                leaf = leaf.view.of(tensor(leaf.output))
            elif isinstance(leaf, Alias):
                leaf = leaf.of(own)
            elif isinstance(leaf, Tensor) and not leaf.requires_grad:
                leaf = leaf.clone()  # made by the trace: the caller may write to what it gets
            results.append(leaf)
        return pytree.tree_unflatten(results, self.captured.structure)
