"""`%%jax profile`: where the time of a cell went.

The text has the tables that matter most: the time breakdown, then lines, modules, operators, instructions.
The HTML (`profile_page.py`) adds a timeline and a flame graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from jaxtorch.insight.profile.perfetto import trace
from jaxtorch.insight.profile.sources import text_of, where

from . import profile_page, roofline
from .page import File
from .page_text import page_text
from .profile_data import heading, packed, phases
from .profiled import ProfiledView
from .protocol import Data, Json, plain
from .standalone import standalone
from .units import amount, duration, share, size

if TYPE_CHECKING:
    from jaxtorch.insight.profile.summary import Node, Profile, Row

_WIDTH = 100
_ROWS = 10


class ProfileView(ProfiledView):
    """Shows a `Profile`. `data()` is a `ProfileData` (`profile_data.py`).

    `answer("save", {form})` is a `File`: a Perfetto trace ("perfetto") or a self-contained page ("page").
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

    def data(self) -> Data:
        return dict(plain(packed(self.profile, self.title)))

    def answer(self, ask: str, arguments: Mapping[str, Json]) -> object:
        if ask != "save":
            return super().answer(ask, arguments)
        name = "".join(c if c.isalnum() else "_" for c in self.title).strip("_")[:40] or "profile"
        if arguments.get("form") == "page":
            return File(f"{name}.html", standalone(self, self.title))
        return File(f"{name}.perfetto.json", json.dumps(trace(self.profile)))


def _head(profile: Profile, title: str) -> str:
    lines = [page_text(heading(profile, title))]
    for group in phases(profile):
        who = group.who
        for part in group.parts:
            time, of_wall = duration(part.time), share(part.time, profile.wall)
            lines.append(f"  {who:12}{part.name:10}{time:>9} {of_wall:>8}  {part.note}")
            who = ""
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
