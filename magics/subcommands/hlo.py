"""`%jax hlo` and `%%jax hlo`: the compiled program beside the source code."""

from __future__ import annotations

from pathlib import Path

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import display

from jaxtorch.insight.elsewhere import LoweredInfo, info_of
from jaxtorch.insight.hlo.listing import STAGES
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.programs import ProgramInfo, latest, programs
from jaxtorch.widgets.diff import DiffView
from jaxtorch.widgets.hlo import HloView
from jaxtorch.widgets.hlo_format import full_text
from jaxtorch.widgets.view import View

from ...capture.cells.effects import has_effects
from .. import elsewhere
from ..cell_magics import CellMagics
from ..ran import noting_runs, shown_of
from ..report import read_cell
from .programs import find, runnable_names, sentence
from .table import Invocation, subcommand


@subcommand(
    "hlo",
    argument(
        "program",
        nargs="*",
        help="a name or a number, or a variable with what `lower(...).compile()` returned; "
        "the latest program by default; two programs are compared",
    ),
    argument("--diff", action="store_true", help="compare the last two programs of this name"),
    argument("--backward", action="store_true", help="show the backward program"),
    argument("--stage", choices=STAGES, default="hlo", help="which representation to show"),
    argument("--line", type=int, metavar="N", help="only the instructions that come from line N"),
    argument("--grep", metavar="WORD", default="", help="only the lines that contain a word"),
    elsewhere.target_argument(f"{elsewhere.HELP}; two targets are compared"),
    argument("--save", metavar="FILE", help="write the full text to a file"),
    example="hlo NAME",
    help="a program beside its source code: jaxpr, StableHLO, HLO, cost by line; as %%jax hlo it runs the cell first",
    cell=True,
    values={"program": runnable_names, "target": elsewhere.target_names},
)
def hlo(call: Invocation) -> View | None:
    """Show a program."""
    arguments = call.arguments
    elsewhere.check_targets(arguments.target)
    if call.cell is not None:
        if arguments.program or arguments.diff:
            raise UsageError(
                "`%%jax hlo` shows the cell's own program: its line takes options only."
            )
        chosen = [_of_cell(call)]
    else:
        chosen = _chosen(call, arguments.program, arguments.diff)
    if arguments.backward:
        chosen = [_backward(one) for one in chosen]
    if arguments.target:
        chosen = _on_targets(chosen, arguments.target)
    try:
        readings = [Reading(one) for one in chosen]
    except LookupError as error:
        raise UsageError(sentence(error)) from None
    if arguments.save is not None:
        _save(arguments.save, full_text(readings[-1], arguments.stage))
        return None
    if len(readings) == 2:
        return DiffView(readings[0], readings[1], arguments.stage)
    return HloView(readings[0], arguments.stage, arguments.line, arguments.grep)


def _chosen(call: Invocation, named: list[str], two: bool) -> list[ProgramInfo]:
    """The program to show, or the two to compare."""
    if len(named) > 2:
        raise UsageError("`%jax hlo` shows one program or compares two; more than two were given.")
    if len(named) == 2:
        return [find(call, name) for name in named]
    info = find(call, named[0]) if named else _latest()
    if not two:
        return [info]
    versions = [p for p in programs() if p.name == info.name and p.part == info.part and p.alive]
    if len(versions) < 2:
        raise UsageError(
            f"There is only one program of {info.name!r}: nothing to compare. `%jax hlo A B` compares any two."
        )
    return versions[-2:]


def _on_targets(chosen: list[ProgramInfo], targets: list[str]) -> list[ProgramInfo]:
    """The programs as the compilers of these targets make them."""
    if lowered := [one for one in chosen if isinstance(one, LoweredInfo)]:
        raise UsageError(
            f"`--target` works with programs of the session. {lowered[0].name} is already compiled for its target."
        )
    if len(chosen) * len(targets) > 2:
        raise UsageError(
            "`%jax hlo` compares at most two results: one program on two targets, or two programs on one target."
        )
    return [
        info_of(info, program)
        for info in chosen
        for program in elsewhere.compiled_for(info, targets)
    ]


def _latest() -> ProgramInfo:
    info = latest()
    if info is None:
        raise UsageError("Nothing has been compiled in this session yet: run a cell first.")
    return info


def _backward(info: ProgramInfo) -> ProgramInfo:
    parts = [p for p in programs() if p.source == info.source and p.part == "backward" and p.alive]
    if not parts:
        raise UsageError(
            f"{info.name} has no backward program yet: it is compiled at the first backward()."
        )
    return parts[-1]


def _save(path: str, text: str) -> None:
    """Write a text to a file and report it."""
    if path[:1] in "'\"" and path[-1:] == path[:1]:  # a name with spaces
        path = path[1:-1]
    try:
        Path(path).expanduser().write_text(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}.") from None
    print(f"{path}: {len(text.splitlines())} lines")


# -- over a cell ------------------------------------------------------------------------------------------------


def _of_cell(call: Invocation) -> ProgramInfo:
    """Run the cell as one program, once, and find this program.

    A cell that starts with `%%pure` or `%%jit` runs under that magic. Any other cell runs as `%%jit` if its code has
    side effects, and otherwise as `%%pure`, which keeps the gradient. The cell never runs twice, because a second run
    would print, count and draw from a loader again. So if an effect was missed and `%%pure` refuses the cell, the
    session is unchanged and the error says to write `%%jit`.
    """
    with noting_runs() as ran:
        value = _run(call)
    if value is not None:
        display(value)
    shown = shown_of(ran)
    if shown is None:
        raise UsageError("The cell did not run a program of its own.")
    return shown


def _run(call: Invocation) -> object:
    cell = call.cell or ""
    head = f"%%jax {call.line}".rstrip()
    empty = cell[: len(cell) - len(cell.lstrip("\n"))]
    first, _, body = cell.lstrip("\n").partition("\n")
    magic, _, options = first.strip().partition(" ")
    run_below = call.shell.magics_manager.registry[CellMagics.__name__].run_below
    if magic in ("%%pure", "%%jit"):
        return run_below(f"{head}\n{empty}{first}", magic[2:], options, body)
    code = read_cell(call.shell, head, cell)
    magic = "jit" if has_effects(code, call.shell.user_ns) else "pure"
    return run_below(head, magic, "-q", cell)
