"""`%%jax profile`, `%jax profile statement` and `%%jax lines`: where code spends its time."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import display

from jaxtorch.capture.cells.code import LAST_VALUE
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
    argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="number of measured runs; times are means",
    ),
    argument("--warmup", type=int, default=0, metavar="N", help="number of unmeasured runs before"),
    argument("--memory", action="store_true", help="record the peak memory held by tensors"),
    argument("--save", metavar="FILE", help="write a Perfetto trace (.json) or a page (.html)"),
)

_EVERY = argument("--all", action="store_true", help="show the lines that took no time, too")


class _Code(NamedTuple):
    """The code to profile: a function without arguments, and the file name of its frames ("" under another magic)."""

    run: Callable[[], Any]
    file: str


def _view(kind: type[ProfiledView], call: Call) -> ProfiledView:
    """Run the statement or the cell under the profiler and return the view."""
    arguments = call.arguments
    if arguments.repeat < 1 or arguments.warmup < 0:
        raise UsageError("--repeat must be at least 1, --warmup at least 0.")
    path = None if arguments.save is None else Path(arguments.save).expanduser()
    if path is not None and path.suffix not in (".json", ".html"):
        raise UsageError(
            f"--save {path}: use a name ending in .json for a Perfetto trace, or in .html for a page."
        )
    code = _code(call)
    try:
        profile = run_profiled(
            code.run, repeat=arguments.repeat, warmup=arguments.warmup, memory=arguments.memory
        )
    except ProfileError as error:
        raise UsageError(str(error)) from None
    view = kind(profile, _title(call), code.file)
    if isinstance(view, LinesView):
        view.every = arguments.all
    recording = profile.recording
    if recording.error is not None:
        if isinstance(
            recording.error, KeyboardInterrupt
        ):  # a user who interrupts wants to see why it takes so long
            display(view)
        raise recording.error
    if path is not None:
        _save(path, profile, view)
    return view


def _title(call: Call) -> str:
    if call.cell is None:
        return str(call.arguments.statement)
    return f"cell [{cell_number(call.shell)}]"


def _code(call: Call) -> _Code:
    """The cell's body or the statement, ready to run in the user's namespace."""
    shell, statement = call.shell, call.arguments.statement
    if call.cell is not None and statement:
        raise UsageError(f"Above a cell only options are allowed, not {statement!r}.")
    body = statement if call.cell is None else call.cell
    if not body.strip():
        raise UsageError(
            "Nothing to run: write a statement on the same line, or use %%jax above a cell with code."
        )
    if body.lstrip().startswith("%%"):  # a cell under another magic
        first, _, inner = body.lstrip().partition("\n")
        name, _, line = first[2:].partition(" ")
        return _Code(lambda: shell.run_cell_magic(name, line, inner), "")
    sign = "%jax" if call.cell is None else "%%jax"
    code = read_cell(shell, f"{sign} {call.line}".rstrip(), body)

    def run() -> Any:
        names = shell.user_ns
        try:
            exec(code.code, names)
            return names.get(LAST_VALUE)
        except Exception as error:
            show_from_cell(shell, error, code)
            raise
        finally:
            names.pop(LAST_VALUE, None)

    return _Code(run, code.file)


def _save(path: Path, profile: Profile, view: ProfiledView) -> None:
    if path.suffix == ".json":
        content = json.dumps(trace(profile))
    else:
        content = standalone(view, view.title)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save {path}: {error.strerror}.") from None
    hint = " Open it at https://ui.perfetto.dev." if path.suffix == ".json" else ""
    print(f"Saved {path}.{hint}")


def _register(name: str, kind: type[ProfiledView], help: str) -> None:
    own = () if kind is ProfileView else (_EVERY,)
    subcommand(
        name, *_ARGUMENTS, *own, example=f"{name} step(x)", help=help, cell=True, statement=True
    )(functools.partial(_view, kind))


_register(
    "profile",
    ProfileView,
    "run a statement, or a cell as %%jax profile, and show where the time went",
)
_register("lines", LinesView, "the same, shown as source code with the device time of each line")
