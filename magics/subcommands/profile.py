"""`%%jax profile`, `%jax profile statement` and `%%jax lines`: where code spends its time."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.display import display

from jaxtorch.insight.profile import Profile, ProfileError
from jaxtorch.insight.profile import profile as run_profiled
from jaxtorch.insight.profile.perfetto import trace
from jaxtorch.widgets.lines import LinesView
from jaxtorch.widgets.profile import ProfileView
from jaxtorch.widgets.profiled import ProfiledView
from jaxtorch.widgets.standalone import standalone

from ..runnable import runnable, title_of
from .table import Invocation, subcommand

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


def _view(kind: type[ProfiledView], call: Invocation) -> ProfiledView:
    """Run the statement or the cell under the profiler and return the view."""
    arguments = call.arguments
    if arguments.repeat < 1 or arguments.warmup < 0:
        raise UsageError("--repeat must be at least 1, --warmup at least 0.")
    path = None if arguments.save is None else Path(arguments.save).expanduser()
    if path is not None and path.suffix not in (".json", ".html"):
        raise UsageError(
            f"--save {path}: use a name ending in .json for a Perfetto trace, or in .html for a page."
        )
    code = runnable(call)
    try:
        profile = run_profiled(
            code.run, repeat=arguments.repeat, warmup=arguments.warmup, memory=arguments.memory
        )
    except ProfileError as error:
        raise UsageError(str(error)) from None
    view = kind(profile, title_of(call), code.file)
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


def _save(path: Path, profile: Profile, view: ProfiledView) -> None:
    if path.suffix == ".json":
        content = json.dumps(trace(profile))
    else:
        content = standalone(view.complete(), view.title)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save {path}: {error.strerror}.") from None
    hint = " Open it at https://ui.perfetto.dev." if path.suffix == ".json" else ""
    print(f"Saved {path}.{hint}")


def _register(name: str, kind: type[ProfiledView], help: str) -> None:
    more = () if kind is ProfileView else (_EVERY,)
    subcommand(
        name, *_ARGUMENTS, *more, example=f"{name} step(x)", help=help, cell=True, statement=True
    )(functools.partial(_view, kind))


_register(
    "profile",
    ProfileView,
    "run a statement, or a cell as %%jax profile, and show where the time went",
)
_register("lines", LinesView, "the same, shown as source code with the device time of each line")
