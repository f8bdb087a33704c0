"""Maps instructions to lines of user code, and lines to instructions.

A stack holds frames of the cell, of the libraries it calls, of torch, jaxtorch and JAX. The line to show is the
innermost line of a cell. If the stack has no cell, it is the innermost line of the user's files. So the work of a
helper in a module is shown at the line of the cell that called the helper.

Stacks are read from the innermost frame outwards. If the capture machinery comes before any line of user code, the
work belongs to the machinery, and it is not attributed to the line that triggered it.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from ...programs.site import is_user_file
from ..programs import Location, location_of
from .module import RUNS_INSIDE, Frame, Instruction, Module

# The files that call user code in order to trace it, and that assemble and compile the trace.
_KERNEL = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_MACHINERY = frozenset(
    os.path.join(_KERNEL, *path)
    for path in (("capture", "captured.py"), ("programs", "compiled.py"))
)
# The file that calls the profiled function. The frames outside it belong to the caller of the profiler.
PROFILER = os.path.join(_KERNEL, "insight", "profile", "record.py")


def location_of_stack(stack: Iterable[tuple[str, int, str] | Frame]) -> Location | None:
    """The line to show for a stack, given innermost first; None if it has no line of user code.

    Example:
        >>> from jaxtorch.insight.hlo.source import location_of_stack
        >>> stack = [("/home/me/helpers.py", 7, "f"), ("<ipython-input-3-abc>", 2, "<module>")]
        >>> location_of_stack(stack).cell, location_of_stack(stack).line, location_of_stack(stack[:1]).line
        (3, 2, 7)
    """
    return select_location(user_locations(stack))


def user_locations(stack: Iterable[tuple[str, int, str] | Frame]) -> Iterator[Location]:
    """The lines of user code on a stack, the innermost first, up to the capture machinery or the profiler."""
    in_user_code = False
    for file, line, _ in stack:
        if file in _MACHINERY or (file == PROFILER and in_user_code):
            return
        if file and is_user_file(file) and (location := location_of((file, line))) is not None:
            if location.cell is None and is_cell_file(file) and file not in linecache.cache:
                continue  # a cell of another session, whose program came from the persistent cache
            in_user_code = True
            yield location


def select_location(locations: Iterable[Location]) -> Location | None:
    """The place to show: the first one in a cell, or else the first."""
    first = None
    for location in locations:
        if location.cell is not None or is_cell_file(location.file):
            return location
        first = first or location
    return first


def is_cell_file(file: str) -> bool:
    """Whether a file name is that of a notebook cell."""
    return "ipykernel_" in file or file.startswith("<ipython-input")


class Sources:
    """The source lines of a module's instructions."""

    def __init__(self, module: Module):
        self.module = module
        self._locations: dict[int, Location | None] = {0: None}
        self._stacks: dict[int, tuple[Location, ...]] = {}

    def of(self, instruction: Instruction) -> Location | None:
        """The line that an instruction was traced at.

        XLA may leave an instruction without a line. If it contains other instructions (a fusion, a reduction), it gets
        the line of the last of these that has one.
        """
        return self._of_frame(self._frame(instruction))

    def stack(self, instruction: Instruction) -> tuple[Location, ...]:
        """Every line of user code on its stack, the innermost first, without duplicates."""
        frame = self._frame(instruction)
        if frame not in self._stacks:
            self._stacks[frame] = tuple(dict.fromkeys(user_locations(self.module.stack(frame))))
        return self._stacks[frame]

    def _frame(self, instruction: Instruction) -> int:
        """The frame with an instruction's line; 0 if there is none."""
        if self._of_frame(instruction.frame) is not None:
            return instruction.frame
        if instruction.opcode not in RUNS_INSIDE:
            for called in instruction.calls:
                for inner in reversed(self.module.computations[called].instructions):
                    if frame := self._frame(inner):
                        return frame
        return 0

    def spanned(self, instruction: Instruction) -> tuple[Location, ...]:
        """Every line that an instruction does work for: its own line first, then the lines of fused instructions."""
        return self._spans[instruction.id]

    def at(self, location: Location) -> Sequence[Instruction]:
        """The instructions that do work for a line: those traced at the line, and the fusions that contain them."""
        return self._at.get((location.file, location.line), ())

    @property
    def locations(self) -> list[Location]:
        """Every line with instructions, in order of file and line."""
        unique = {(p.file, p.line): p for spans in self._spans.values() for p in spans}
        return sorted(unique.values(), key=lambda p: (p.cell is None, p.cell or 0, p.file, p.line))

    @cached_property
    def _spans(self) -> dict[int, tuple[Location, ...]]:
        spans = {}
        single: dict[Location | None, tuple[Location, ...]] = {None: ()}
        for instruction in self.module.instructions.values():
            location = self.of(instruction)
            if instruction.opcode == "fusion":
                inner = (self.of(i) for i in self.module.inside(instruction))
                spanned = tuple(p for p in dict.fromkeys((location, *inner)) if p is not None)
            elif (spanned := single.get(location)) is None:  # type: ignore[assignment]  # by the walrus
                spanned = single[location] = (location,) if location is not None else ()
            spans[instruction.id] = spanned
        return spans

    @cached_property
    def _at(self) -> dict[tuple[str, int], list[Instruction]]:
        instructions: dict[tuple[str, int], list[Instruction]] = {}
        for number, locations in self._spans.items():
            for location in locations:
                instruction = self.module.instructions[number]
                instructions.setdefault((location.file, location.line), []).append(instruction)
        return instructions

    def _of_frame(self, frame: int) -> Location | None:
        if frame not in self._locations:
            self._locations[frame] = location_of_stack(self.module.stack(frame))
        return self._locations[frame]
