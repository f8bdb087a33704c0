"""`--target`: wait until a program is compiled for another chip, with the progress line; Ctrl-C cancels it.

Without waiting, `%jax target` has programs compiled in the background. `TargetLines` reports their results: in a
notebook, in a line below the cell that compiled them, which is updated; in a terminal, after the next cell, because a
line must not appear in what the user is typing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.capture.background import background
from jaxtorch.capture.layouts import check_target
from jaxtorch.capture.target import current_target
from jaxtorch.capture.target_program import TargetProgram
from jaxtorch.capture.tpu import CompileError, libtpu_folder
from jaxtorch.capture.tpu_chips import targets as chips
from jaxtorch.insight.elsewhere import on_targets
from jaxtorch.insight.programs import ProgramInfo
from jaxtorch.programs.compiling import phase
from jaxtorch.widgets.target import line_of

from . import progress

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

HELP = "compile the program for a TPU and its topology, such as v5e:1x1, and wait for the result"


def target_argument(help: str) -> Any:
    """The option `--target` of a magic, which takes one target or several."""
    return argument("--target", nargs="+", action="extend", default=[], metavar="TARGET", help=help)


def target_names(start: str) -> Iterable[str]:
    """Targets for completion: of each chip the one with a single chip, and larger ones."""
    return [name for chip in chips() for name in chip.examples]


def check_targets(targets: Sequence[str]) -> None:
    """A wrong target, or a missing compiler, is an error of one line before anything runs."""
    try:
        for target in targets:
            check_target(target)
        if targets:
            libtpu_folder()
    except (CompileError, ValueError) as error:
        raise UsageError(f"--target: {error}.") from None


def compiled_for(info: ProgramInfo, targets: Sequence[str]) -> list[TargetProgram]:
    """A program of the session compiled for these targets.

    Raises:
        UsageError: one of them could not be compiled.
    """
    check_targets(targets)
    found = on_targets(info, targets)
    with phase(f"{info.name} for {' and '.join(targets)}", "TPU"):
        background.wait(found)
    for program in found:
        if program.executable is None:
            raise UsageError(f"{line_of(program)}.")
    return found


class TargetLines:
    """The lines that report the results of each cell's programs.

    Args:
        update: shows a cell's lines in its output, and returns a function that replaces them; None where an output
            cannot be replaced later.
    """

    def __init__(self, update: Callable[[], progress.Sink] | None):
        self._sink_of_cell = update
        self._of_cell: list[TargetProgram] | None = None  # of the running cell
        self._shown: list[tuple[list[TargetProgram], progress.Sink]] = []
        self._finished: list[TargetProgram] = []  # to be printed

    def begin(self) -> None:
        """A cell begins."""
        self._of_cell = []

    def settle(self) -> None:
        """The cell has ended: show its lines, or print those of earlier cells."""
        programs, self._of_cell = self._of_cell or [], None
        programs = [p for p in programs if not p.ended]
        if self._sink_of_cell is None:
            finished, self._finished = self._finished, []
            for program in finished:
                print(line_of(program))
        elif programs:
            entry = programs, self._sink_of_cell()
            self._shown.append(entry)
            self._show(*entry)

    def changed(self, program: TargetProgram) -> None:
        """The state of a program has changed, in any thread."""
        if current_target() is None and program.state == "cancelled":
            return
        if program.state == "waiting" and self._of_cell is not None:
            self._of_cell.append(program)
        elif self._sink_of_cell is None:
            if program.ended and not background.is_urgent(program):
                self._finished.append(program)
        else:
            for entry in [entry for entry in self._shown if program in entry[0]]:
                self._show(*entry)
                if all(p.ended for p in entry[0]):
                    self._shown.remove(entry)

    def _show(self, programs: list[TargetProgram], sink: progress.Sink) -> None:
        sink.show("\n".join(map(line_of, programs)))


_lines: TargetLines | None = None


def start(shell: InteractiveShell) -> None:
    """Report results in this session, if the front end can show them."""
    global _lines
    stop()
    sink = progress.sink(shell)
    if sink is not None:
        notebook = isinstance(sink, progress.Output)
        _lines = TargetLines(progress.Output if notebook else None)
        background.on_change = _lines.changed


def begin() -> None:
    """A cell begins."""
    background.hold()
    if _lines is not None:
        _lines.begin()


def settle() -> None:
    """The cell has ended."""
    background.release()
    if _lines is not None:
        _lines.settle()


def stop() -> None:
    """Say nothing any more."""
    global _lines
    background.release()
    _lines = background.on_change = None
