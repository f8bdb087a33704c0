"""One traced signature, run again and again: where its inputs are, whether it still holds, what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..device.rng import Source
from ..dispatch.stats import Reason
from .captured import Captured, Output
from .guards import Guards

Tensor = torch.Tensor


class Replay(ABC):
    """A captured program and where its inputs come from.

    Args:
        captured: what the trace found; its inputs are the arguments' buffers, then `references`' cells.
        places: of the arguments, among the leaves of a call.
        cells: how many of the captured cells are read at each run, the arguments' included; all by default.
        guards: what the program may depend on.
    """

    provisional = False  # made lasting tensors: to be traced again, now that they exist

    def __init__(
        self, captured: Captured, places: list[int], guards: Guards, cells: int | None = None
    ):
        self.captured = captured
        self.places = places
        self.guards = guards
        self.references = captured.cells[len(places) : cells]
        self.specs = captured.specs[len(places) : cells]
        # One tensor and nothing around it: a step's loss, a module's output.
        self.single = captured.structure.is_leaf() and isinstance(captured.leaves[0], Output)
        self.sources = [c for r in self.references if isinstance(c := r(), Source)]

    def live_cells(self) -> list[Any] | None:
        """The cells to read, or None where the program no longer says what the code would do."""
        cells = [reference() for reference in self.references]
        try:
            if [cell.spec for cell in cells] != self.specs or not self.holds():
                return None
        except AttributeError:  # a cell, or what `holds` asks, is gone
            return None
        return cells

    def waits(self) -> bool:
        """Whether it holds but for modules that train now and did not then, or the reverse: they may again."""
        cells = [reference() for reference in self.references]
        try:
            same = [cell.spec for cell in cells] == self.specs
        except AttributeError:
            return False
        return same and not self.provisional and self.guards.hold(modes=False)

    def holds(self) -> bool:
        """Whether what the trace depended on is as it was."""
        return self.guards.hold()

    def changes(self) -> list[Reason]:
        """Why `live_cells` or `holds` says no, for a person."""
        found = self.guards.changes()
        cells = [reference() for reference in self.references]
        if any(cell is None for cell in cells):
            found.append(Reason("a tensor that it read is gone", "Keep it, or pass it."))
        for cell, spec in zip(cells, self.specs, strict=True):
            if cell is not None and cell.spec != spec:
                what = f"a tensor that it reads was {_looks(spec)} and is {_looks(cell.spec)}"
                found.append(
                    Reason(what, "Pass it as an argument: each shape has its program then.")
                )
        return found

    @abstractmethod
    def compile(self) -> None:
        """Compile what a run will need, so that the run itself only runs."""

    def run(self, leaves: Sequence[Any], cells: list[Any], borrowed: bool = False) -> Any:
        """The call, by the compiled program. `borrowed`: results go to the CPU."""
        if not self.sources:
            return self._run(leaves, cells, borrowed)
        with ExitStack() as stack:
            for source in self.sources:  # two threads must not draw from the same key
                stack.enter_context(source.held())
            return self._run(leaves, cells, borrowed)

    @abstractmethod
    def _run(self, leaves: Sequence[Any], cells: list[Any], borrowed: bool) -> Any:
        """The call, where nobody else draws random numbers meanwhile."""

    def _result(self, tensor_of: Callable[[Output], Tensor], borrowed: bool) -> Any:
        """What the code returned, with this run's tensors."""
        if self.single and not borrowed:
            return tensor_of(self.captured.leaves[0])
        leaves = []
        for leaf in self.captured.leaves:
            if isinstance(leaf, Output):
                leaf = tensor_of(leaf).cpu() if borrowed else tensor_of(leaf)
            elif isinstance(leaf, Tensor) and not leaf.requires_grad:
                leaf = leaf.clone()  # made by the trace: the caller may write to what it gets
            leaves.append(leaf)
        return pytree.tree_unflatten(leaves, self.captured.structure)


def _looks(spec: Any) -> str:
    return f"{spec.dtype}[{','.join(map(str, spec.shape))}]"
