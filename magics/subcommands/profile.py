"""`%%jax profile`, `%jax profile statement` and `%%jax lines`: where the time of code goes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import display

from jaxtorch.capture.cells.code import SHOWN
from jaxtorch.insight.profile import Profile, ProfileError
from jaxtorch.insight.profile import profile as run_profiled
from jaxtorch.insight.profile.perfetto import trace
from jaxtorch.widgets.lines import LinesView
from jaxtorch.widgets.profile import ProfileView
from jaxtorch.widgets.profiled import ProfiledView
from jaxtorch.widgets.standalone import standalone

from ..cells import cell_number
from ..report import read_cell, show_from_cell
from .table import Call, subcommand

_ARGUMENTS = (
    argument("--repeat", type=int, default=1, metavar="N", help="runs; times are their means"),
    argument("--warmup", type=int, default=0, metavar="N", help="runs before, not measured"),
    argument("--memory", action="store_true", help="the most that tensors held meanwhile"),
    argument("--save", metavar="FILE", help="write a Perfetto trace (.json) or a page (.html)"),
)


class _Code(NamedTuple):
    """What is profiled: a function of no arguments, the file that its frames have ("" for another magic's)."""

    run: Callable[[], Any]
    file: str


def _view(kind: type[ProfiledView], call: Call) -> ProfiledView:
    """Run what stands there under the profiler, and show it."""
    arguments = call.arguments
    if arguments.repeat < 1 or arguments.warmup < 0:
        raise UsageError("--repeat is at least 1, --warmup at least 0.")
    path = None if arguments.save is None else Path(arguments.save).expanduser()
    if path is not None and path.suffix not in (".json", ".html"):
        raise UsageError(
            f"--save {path}: a name ending in .json for a Perfetto trace, in .html for a page."
        )
    code = _code(call)
    try:
        found = run_profiled(
            code.run, repeat=arguments.repeat, warmup=arguments.warmup, memory=arguments.memory
        )
    except ProfileError as error:
        raise UsageError(str(error)) from None
    view = kind(found, _title(call), code.file)
    recording = found.recording
    if recording.error is not None:
        if isinstance(
            recording.error, KeyboardInterrupt
        ):  # who stops it wants to see why it takes so long
            display(view)
        raise recording.error
    if path is not None:
        _save(path, found, view)
    return view


def _title(call: Call) -> str:
    if call.cell is None:
        return str(call.arguments.rest)
    return f"cell [{cell_number(call.shell)}]"


def _code(call: Call) -> _Code:
    """The cell's body or the statement, ready to run in the user's namespace."""
    shell, statement = call.shell, call.arguments.rest
    if call.cell is not None and statement:
        raise UsageError(f"Over a cell stand options alone, and {statement!r} is there.")
    body = statement if call.cell is None else call.cell
    if not body.strip():
        raise UsageError(
            "Nothing to run: write a statement after it, or %%jax over a cell with code."
        )
    if body.lstrip().startswith("%%"):  # a cell under another magic
        first, _, rest = body.lstrip().partition("\n")
        name, _, line = first[2:].partition(" ")
        return _Code(lambda: shell.run_cell_magic(name, line, rest), "")
    sign = "%jax" if call.cell is None else "%%jax"
    code = read_cell(shell, f"{sign} {call.line}".rstrip(), body)

    def run() -> Any:
        names = shell.user_ns
        try:
            exec(code.code, names)
            return names.get(SHOWN)
        except Exception as error:
            show_from_cell(shell, error, code)
            raise
        finally:
            names.pop(SHOWN, None)

    return _Code(run, code.file)


def _save(path: Path, found: Profile, view: ProfiledView) -> None:
    if path.suffix == ".json":
        content = json.dumps(trace(found))
    else:
        content = standalone(view, view.title)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save {path}: {error.strerror}.") from None
    where = " Open it at https://ui.perfetto.dev." if path.suffix == ".json" else ""
    print(f"Saved {path}.{where}")


def _register(name: str, kind: type[ProfiledView], help: str) -> None:
    subcommand(name, *_ARGUMENTS, example=f"{name} step(x)", help=help, cell=True, statement=True)(
        functools.partial(_view, kind)
    )


_register(
    "profile",
    ProfileView,
    "run a statement, or the cell under %%jax profile, and show where its time went",
)
_register("lines", LinesView, "the same, shown as the code with each line's time on the device")
