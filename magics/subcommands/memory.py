"""`%jax memory`: live arrays, what keeps an array alive, the memory of a program."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import display

from jaxtorch.insight.allocations import recorded
from jaxtorch.insight.elsewhere import LoweredInfo
from jaxtorch.insight.fit.report import fit
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.memory import LiveArray, live_arrays
from jaxtorch.insight.programs import latest
from jaxtorch.insight.retainers import retainers
from jaxtorch.storage.buffer import buffer_of
from jaxtorch.widgets.fit import FitView
from jaxtorch.widgets.memory import KeptView, MemoryView, ProgramMemoryView
from jaxtorch.widgets.memory_timeline import MemoryTimelineView
from jaxtorch.widgets.target import fit_view
from jaxtorch.widgets.view import View

from .. import elsewhere
from ..runnable import runnable, title_of
from .programs import captured_names, find
from .table import Invocation, nearest, subcommand


@subcommand(
    "memory",
    argument(
        "program",
        nargs="?",
        help="a compiled program, or a variable with what `lower(...).compile()` returned: show its memory by buffer",
    ),
    argument(
        "--why",
        metavar="TENSOR",
        help="show what keeps a tensor alive: an expression such as model.weight, or its number in the table",
    ),
    elsewhere.target_argument(
        "compile the program for a TPU and its topology, such as v5e:1x1, wait, and show its memory there"
    ),
    example="memory",
    help="the arrays on the device, by size and by line; as %%jax memory: run a cell and show its memory over time",
    cell=True,
    values={"program": captured_names, "target": elsewhere.target_names},
    code=("why",),
)
def memory(call: Invocation) -> View:
    """The live arrays of the session, the memory of a program, or that of a cell over time."""
    arguments = call.arguments
    if call.cell is not None:
        if arguments.program or arguments.why or arguments.target:
            raise UsageError("`%%jax memory` shows the cell's own memory: its line takes nothing.")
        return _of_cell(call)
    names = call.shell.user_ns
    if arguments.why is not None:
        if arguments.program is not None:
            raise UsageError("`%jax memory` takes a program or --why TENSOR, not both.")
        array = _array(arguments.why, names)
        return KeptView(array, retainers(array.id, names))
    if len(arguments.target) > 1:
        raise UsageError("`%jax memory` shows one target at a time: run it once for each.")
    target = arguments.target[0] if arguments.target else None
    if arguments.program is None and target is None:
        return MemoryView(names)
    info = latest() if arguments.program is None else find(call, arguments.program)
    if info is None:
        raise UsageError("Nothing has been compiled in this session yet: run a cell first.")
    if isinstance(info, LoweredInfo):
        return _of_compiled(info, target)
    if target is not None:
        return fit_view(elsewhere.compiled_for(info, [target])[0])
    return ProgramMemoryView(info, Reading(info).buffers if info.alive else ())


def _of_compiled(info: LoweredInfo, target: str | None) -> View:
    """The memory of what `lower(...).compile()` returned; on a chip, its fit report."""
    if target is not None:
        raise UsageError(
            f"`--target` works with a program of the session. {info.name} is already compiled for its target."
        )
    if info.executable.target:
        return FitView(fit(info.executable), info.name)
    return ProgramMemoryView(info, Reading(info).buffers)


def _of_cell(call: Invocation) -> MemoryTimelineView:
    """Run the cell and show its memory over time, also if it fails for lack of it."""
    call.arguments.statement = ""
    timeline = recorded(runnable(call).run, call.shell.user_ns)
    view = MemoryTimelineView(timeline, title_of(call))
    if timeline.error is not None:
        display(view)
        raise timeline.error
    return view


def _array(text: str, names: dict[str, Any]) -> LiveArray:
    """The array that `--why` names: its number or name in the table, or an expression for a tensor."""
    arrays = live_arrays(names)
    if text.isdigit() and 1 <= int(text) <= len(arrays):
        return arrays[int(text) - 1]
    for array in arrays:
        if array.name == text:
            return array
    try:
        value = eval(text, dict(names))
        wanted = id(buffer_of(value).array)
    except Exception:
        candidates = [a.name for a in arrays if a.name]
        near = f" The nearest is `{nearest(text, candidates)}`." if candidates else ""
        raise UsageError(
            f"`%jax memory --why`: {text!r} is not a tensor on the device.{near}"
        ) from None
    return next(a for a in arrays if a.id == wanted)
