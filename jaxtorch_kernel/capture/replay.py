"""One traced signature, run again and again: where its inputs are, whether it still holds, what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import attrgetter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..device.rng import Source
from .captured import Captured
from .dependencies.guard import Change
from .dependencies.record import Record
from .dependencies.tokens import look
from .results import Alias, Output, Part
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
            for t in self.tensors
        ]
        self.specs = captured.specs[len(places) : cells]
        # Of each tensor: its place among those in the tables of modules, or how it is found otherwise.
        places_in_tables = {id(t): i for i, t in enumerate(self.guards.in_tables())}
        self._where = [places_in_tables.get(id(t()), t) for t in self.tensors]
        # One tensor and nothing around it: a step's loss, a module's output.
        self.single = captured.structure.is_leaf() and isinstance(captured.leaves[0], Output)
        alive = [cell() for cell in captured.cells[:cells]]
        written = [i for i in (*captured.written, *given) if i < len(alive)]
        self.sharing = Sharing(alive, places, written, record)
        self.reflagged = record.reflagged
        self.sources = [c for r in self.references if isinstance(c := r(), Source)]

    def _cells(self, tensors: list[Tensor]) -> list[Any]:
        """The cells to read, given what `_alive` gave. Raises AttributeError where one is gone."""
        cells = list(map(_buffer_of, map(_storage_of, tensors)))
        cells += [reference() for reference in self.references]
        return cells

    def _named(self, in_tables: list[Tensor | None]) -> list[Tensor]:
        """The tensors that are read by name, given those in the tables of modules. Raises IndexError where one is gone.

        A weak reference to each would do: a module's are read from its tables, which are read anyhow.
        """
        return [in_tables[i] if type(i) is int else i() for i in self._where]  # type: ignore[misc,operator]  # None raises later

    def _alive(self) -> list[Tensor]:
        """The tensors that are read by name; None for one that is gone."""
        return [t() for t in self.tensors]  # type: ignore[misc]  # those that are gone raise later

    def take_first(self) -> list[Any]:
        """The cells of the call that was traced: its code may have put other tensors in their places since."""
        cells, self._first = self._first, []
        return cells

    def live_cells(self) -> list[Any] | None:
        """The cells to read, or None where the program no longer says what the code would do."""
        try:
            in_tables = self.guards.in_tables()
            tensors = self._named(in_tables)
            cells = self._cells(tensors)
            same = list(map(_spec_of, cells)) == self.specs and self.sharing.cells_agree(cells)
        except _GONE:
            return None
        if not same or list(map(_flag_of, tensors)) != self.flags:
            return None
        try:
            return cells if self.holds(in_tables) else None
        except AttributeError:  # what it asks is gone
            return None

    def waits(self) -> bool:
        """Whether it may hold again: what it reads is still there, though another value stands somewhere."""
        try:
            same = [c.spec for c in self._cells(self._alive())] == self.specs
            return same and not self.provisional and not self.guards.gone
        except _GONE:
            return False

    def holds(self, in_tables: list[Tensor | None] | None = None) -> bool:
        """Whether what the trace depended on is as it was. `in_tables`: as `Guards.hold` takes it."""
        return self.guards.hold(in_tables)

    def changes(self) -> list[Change]:
        """Why `live_cells` or `holds` says no."""
        found = self.guards.changes()
        for reference, flag in zip(self.tensors, self.flags, strict=True):
            tensor = reference()
            if tensor is not None and tensor.requires_grad != flag:
                old = look(tensor)._replace(requires_grad=flag)
                found.append(Change(self.paths.get(id(tensor), "a tensor"), old, look(tensor)))
        try:
            specs = [c.spec for c in self._cells(self._alive())]
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
                made[id(output)] = tensor_of(output).cpu() if borrowed else tensor_of(output)
            return made[id(output)]

        results = []
        for leaf in self.captured.leaves:
            if isinstance(leaf, Output):
                leaf = tensor(leaf)
            elif isinstance(leaf, Part):
                leaf = leaf.view.of(tensor(leaf.output))
            elif isinstance(leaf, Alias):
                leaf = leaf.of(own)
            elif isinstance(leaf, Tensor) and not leaf.requires_grad:
                leaf = leaf.clone()  # made by the trace: the caller may write to what it gets
            results.append(leaf)
        return pytree.tree_unflatten(results, self.captured.structure)
