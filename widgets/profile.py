"""`%%jax profile`: where the time of a cell went.

The text has the tables that matter most: the time breakdown, then lines, modules, operators, instructions.
The HTML (`profile_page.py`) adds a timeline and a flame graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtorch.insight.profile.perfetto import trace
from jaxtorch.insight.profile.sources import text_of, where

from . import profile_page, roofline
from .profile_data import packed
from .profiled import ProfiledView
from .standalone import standalone
from .units import amount, duration, share, size

if TYPE_CHECKING:
    from jaxtorch.insight.profile.summary import Node, Profile, Row

_WIDTH = 100
_ROWS = 10


class ProfileView(ProfiledView):
    """Shows a `Profile`.

    Times in `data()` are nanoseconds. They are means over the runs, except in `events`, which has all runs.

    | key | what it holds |
    | --- | --- |
    | `version` | 1 |
    | `title` | what was profiled |
    | `repeat`, `wall`, `device`, `busy`, `idle`, `attributed` | number of runs; the times; 0 to 1 |
    | `host` | `compile`, `waiting`, `transfer`, `dispatch`, `python` of the calling thread |
    | `memory` | `before`, `peak`, `after` in bytes, or null |
    | `peak` | `name`, `flops`, `bandwidth` of the device (per second), or null |
    | `lines` | rows: `id`, `file`, `cell`, `line`, `source`, `inclusive` (ns), and a time (below) |
    | `unattributed` | a time |
    | `tree` | `name`, a time, `own` (ns), `children` |
    | `operators` | rows: `id`, `name`, and a time |
    | `instructions` | rows: `id`, `program`, `number`, `name`, `opcode`, `lines`, and a time (1) |
    | `events` | columns of whole numbers: `start`, `duration`, `lane`, `name`, `depth`, `line`, and three more (2) |
    | `names`, `lanes` | strings; `name`, `device` (bool) each |
    | `runs` | (start, end) of each run |

    A time is `total`, `backward`, `inferred` (ns; the last two are parts of the first), `count`, `flops`, `bytes`.

    (1) `number` is the number for `%jax hlo`, or null; `lines` are ids of rows of `lines`.
    (2) All of equal length, sorted by lane and start. `name` indexes `names`, `lane` indexes `lanes`, `line` is the id
    of a row of `lines`, or -1. If the device is the CPU, its events are also in lanes of the host. `operator`, `module`
    and `instruction` are rows of those tables, or -1: the ones that take most of the event's time. Modules are numbered
    in the order of `tree`, without the root.

    `answer("save", {form})` is `{name, text}`: a Perfetto trace ("perfetto") or a self-contained page ("page").
    """

    kind: ClassVar[str] = "profile"

    def text(self) -> str:
        found = self.profile
        parts = [
            _head(found, self.title),
            _lines(found),
            _modules(found),
            _ranking("operator", found.operators, found.device),
            _instructions(found),
            _roofline(found),
        ]
        return "\n\n".join(part for part in parts if part)

    def html(self) -> str:
        return profile_page.page(self.profile, self.title, self.sources())

    def data(self) -> dict[str, Any]:
        return packed(self.profile, self.title)

    def answer(self, ask: str, arguments: Mapping[str, Any]) -> object:
        if ask != "save":
            return super().answer(ask, arguments)
        name = "".join(c if c.isalnum() else "_" for c in self.title).strip("_")[:40] or "profile"
        if arguments.get("form") == "page":
            return {"name": f"{name}.html", "text": standalone(self, self.title)}
        return {"name": f"{name}.perfetto.json", "text": json.dumps(trace(self.profile))}


def facts(profile: Profile) -> list[tuple[str, float, str]]:
    """The wall time broken down, for the device, then for the calling thread: (name, nanoseconds, note)."""
    host = profile.host
    return [
        ("device busy", profile.busy, "some lane of the device works"),
        ("device idle", profile.idle, "none does"),
        ("compiling", host.compile, "tracing, lowering, XLA"),
        ("launching", host.dispatch, "handing programs to XLA"),
        ("transfers", host.transfer, "between host and device"),
        ("waiting", host.waiting, "for the device"),
        ("Python", host.python, "everything else: the code, torch, dispatch"),
    ]


def _head(profile: Profile, title: str) -> str:
    runs = f"{profile.repeat} runs, each" if profile.repeat > 1 else "one run,"
    lines = [
        f"{title or 'Profile'}: {runs} {duration(profile.wall)}; "
        f"{duration(profile.device)} of work on the device, {100 * profile.attributed:.0f} % of it known by line"
    ]
    width = max(len(name) for name, *_ in facts(profile))
    for i, (name, time, note) in enumerate(facts(profile)):
        who = {0: "device", 2: "this thread"}.get(i, "")
        name = name.removeprefix("device ")
        lines.append(
            f"  {who:12}{name:{width}}{duration(time):>9} {share(time, profile.wall):>8}  {note}"
        )
    memory = profile.recording.memory
    if memory is not None:
        lines.append(
            f"  {'memory':12}{size(memory.before)} before, {size(memory.peak)} at most, {size(memory.after)} after"
        )
    return "\n".join(lines)


def _lines(profile: Profile) -> str:
    rows = [
        [
            *_times(row.time.total, profile.device, row.time.inferred),
            duration(row.inclusive.total),
            duration(row.time.backward) if row.time.backward else "",
            amount(row.time.flops),
            size(row.time.bytes),
            _line(row),
        ]
        for row in sorted(profile.lines, key=lambda r: -r.time.total)[:_ROWS]
    ]
    rest = profile.unattributed
    if rest.total:
        rows.append([*_times(rest.total, profile.device), "", "", "", "", "(no line)"])
    more = len(profile.lines) - _ROWS
    if more > 0:
        rows.append([*[""] * 6, f"and {more} more lines"])
    calling = sorted(profile.calling, key=lambda r: -r.inclusive.total)[: _ROWS // 2]
    rows += [["", "", duration(row.inclusive.total), "", "", "", _line(row)] for row in calling]
    return table(("device", "share", "inclusive", "backward", "ops", "bytes", "line"), rows)


def _line(row: Row) -> str:
    return f"{where(row.place)}: {text_of(row.place)}" if row.place is not None else row.name


def _modules(profile: Profile) -> str:
    rows: list[list[str]] = []

    def walk(node: Node, depth: int) -> None:
        if len(rows) < 2 * _ROWS and node.time.total > profile.device / 200:
            times = _times(node.time.total, profile.device)
            back = duration(node.time.backward) if node.time.backward else ""
            rows.append([*times, back, "  " * depth + node.name])
            for child in node.children:
                walk(child, depth + 1)

    for child in profile.tree.children:
        walk(child, 0)
    return table(("device", "share", "backward", "module"), rows) if rows else ""


def _ranking(kind: str, rows: Sequence[Row], whole: float) -> str:
    cells = [[*_times(r.time.total, whole), f"{r.time.count:.0f}", r.name] for r in rows[:_ROWS]]
    if len(rows) > _ROWS:
        cells.append(["", "", "", f"and {len(rows) - _ROWS} more"])
    return table(("device", "share", "times", kind), cells)


def _instructions(profile: Profile) -> str:
    rows = []
    for row in profile.instructions[: _ROWS // 2]:
        places = "; ".join(map(where, row.places[:2])) + (" ..." if len(row.places) > 2 else "")
        name = f"{row.instruction} of {row.program}"
        rows.append([*_times(row.time.total, profile.device), row.opcode, name, places])
    return table(("device", "share", "opcode", "instruction", "from"), rows)


def _roofline(profile: Profile) -> str:
    if profile.peak is None or not profile.roofline:
        return ""
    return f"{roofline.heading(profile.peak)}\n{table(roofline.NAMES, roofline.rows(profile))}"


def _times(total: float, whole: float, inferred: float = 0.0) -> list[str]:
    mark = "~" if inferred > 0.05 * total else ""
    return [mark + duration(total), share(total, whole)]


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A text table: numbers aligned right, the last column verbatim, lines cut to the width of a terminal.

    Example:
        >>> from jaxtorch.widgets.profile import table
        >>> print(table(("time", "name"), [["1 s", "a"], ["10 s", "b"]]))
        time  name
         1 s  a
        10 s  b
    """
    rows = [names, *rows]
    if len(rows) == 1:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(names) - 1)]
    left = {i for i, name in enumerate(names) if name in ("opcode", "instruction")}
    lines = []
    for row in rows:
        cells = [
            f"{cell:{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        line = "  ".join([*cells, row[-1]]).rstrip()
        lines.append(line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "...")
    return "\n".join(lines)
