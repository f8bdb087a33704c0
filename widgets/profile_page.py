"""The page of a profile: its finding, the breakdown of its time, its charts and its tables.

The names, columns and colours are those of the live form (`js/src/views/profile.tsx`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypedDict

from jaxtorch.insight.profile.sources import line_label, text_of

from . import roofline
from .lines import is_estimate
from .page import Chart, Column, Page, Row, Section, Table, columns
from .profile_charts import bars, flame
from .profile_data import heading, phases
from .timeline import timeline
from .units import duration, share

if TYPE_CHECKING:
    from jaxtorch.insight.profile.summary import ModuleTime, Profile, Time

_TEXT_ROWS = 10
_REST = "the live view and a file of --save have them"


class Detail(NamedTuple):
    """How much a page shows."""

    rows: int  # of each table
    lines: int  # of code
    pieces: int  # of the timeline
    bars: int  # of the flame graph


FULL = Detail(1000, 1000, 2000, 1000)
SAVED = tuple(
    Detail(*numbers)
    for numbers in (
        (30, 40, 240, 100),
        (16, 20, 160, 60),
        (10, 15, 120, 40),
        (7, 12, 90, 30),
        (4, 6, 60, 15),
    )
)  # the first that is small enough


@dataclass(frozen=True, kw_only=True)
class TimeRow(Row):
    """Time on the device; the same columns as in the live form, after the column of the name."""

    time: Annotated[float | None, Column("time", "nanoseconds", mark="inferred")]
    share: Annotated[float | None, Column("share", "share")]
    inclusive: Annotated[float | None, Column("inclusive", "nanoseconds")] = None
    forward: Annotated[float | None, Column("forward", "nanoseconds", text=False)]
    backward: Annotated[float | None, Column("backward", "nanoseconds")]
    runs: Annotated[float | None, Column("runs", "count", text=False)]
    flops: Annotated[float | None, Column("FLOPs", "amount")]
    bytes: Annotated[float | None, Column("bytes", "bytes", text=False)]
    inferred: bool


@dataclass(frozen=True, kw_only=True)
class LineRow(TimeRow):
    """A line of code."""

    line: Annotated[str, Column("line", "code", most=40)]
    where: Annotated[str, Column("where")]


@dataclass(frozen=True, kw_only=True)
class ModuleRow(TimeRow):
    """A module, indented by its depth."""

    module: Annotated[str, Column("module", "code")]


@dataclass(frozen=True, kw_only=True)
class OperatorRow(TimeRow):
    """An operator."""

    operator: Annotated[str, Column("operator", "code")]


@dataclass(frozen=True, kw_only=True)
class KernelRow(TimeRow):
    """An HLO instruction."""

    instruction: Annotated[str, Column("instruction", "code", most=40)]
    opcode: Annotated[str, Column("opcode", "code")]
    program: Annotated[str, Column("program", "code", most=20)]
    lines: Annotated[str, Column("lines")]


def page(profile: Profile, title: str, first: str, detail: Detail) -> Page:
    """The page. A terminal shows the breakdown and the tables.

    Args:
        first: the file of the profiled cell.
        detail: how much it shows.
    """
    rows = detail.rows
    tables = (
        _table(profile, "line", LineRow, list(_lines(profile)), detail.lines),
        _table(profile, "module", ModuleRow, list(_modules(profile)), rows),
        _table(profile, "operator", OperatorRow, list(_operators(profile)), rows),
        _table(profile, "instruction", KernelRow, list(_kernels(profile)), rows),
    )
    return replace(
        heading(profile, title, first),
        sections=(
            Chart("", None, text=lambda: _breakdown(profile), html=lambda: bars(profile)),
            Chart("", None, "Timeline", html=lambda: timeline(profile, detail.pieces), opened=True),
            replace(tables[0], opened=True),
            Chart("", None, "Flame graph", html=lambda: flame(profile, detail.bars), opened=True),
            *tables[1:],
            *_roofline(profile),
        ),
    )


def _table(profile: Profile, axis: str, kind: type[Row], rows: list[Row], most: int) -> Table:
    """The table of an axis, the longest time first, with a sentence on omitted rows."""
    shown = rows[:most]
    notes = [f"{len(rows) - most} more: {_REST}."] if len(rows) > most else []
    unattributed = profile.unattributed.total
    if axis == "line" and unattributed:
        of = share(unattributed, profile.device)
        notes.append(f"{duration(unattributed)} ({of}) belong to no line.")
    name = next(i for i, column in enumerate(columns(kind, [])) if column.key == axis)
    declared = columns(kind, shown)
    # The name comes first, as in the live form.
    keys = [c.key for c in columns(kind, [])[name:]]
    ordered = sorted(declared, key=lambda column: column.key not in keys)
    text_rows = _TEXT_ROWS // 2 if axis == "instruction" else _TEXT_ROWS
    return Table(
        f"{axis}s",
        tuple(ordered),
        shown,
        f"Time by {axis}",
        empty="",
        omitted=" ".join(notes),
        text_rows=20 if axis == "module" else text_rows,
    )


def _breakdown(profile: Profile) -> str:
    lines = []
    for group in phases(profile):
        who = group.who
        for part in group.parts:
            time, of_wall = duration(part.time), share(part.time, profile.wall)
            lines.append(f"  {who:12}{part.name:10}{time:>9} {of_wall:>8}  {part.note}")
            who = ""
    return "\n".join(lines)


class _Figures(TypedDict):
    """The values of a `TimeRow`."""

    time: float | None
    share: float | None
    forward: float | None
    backward: float | None
    runs: float | None
    flops: float | None
    bytes: float | None
    inferred: bool


def _figures(profile: Profile, time: Time) -> _Figures:
    return {
        "time": time.total or None,
        "share": time.total / profile.device if time.total else None,
        "forward": time.forward or None,
        "backward": time.backward or None,
        "runs": time.count or None,
        "flops": time.flops or None,
        "bytes": time.bytes or None,
        "inferred": is_estimate(time),
    }


def _lines(profile: Profile) -> Iterator[LineRow]:
    """Self time first; then the lines that only call others."""
    rows = sorted(
        [*profile.lines, *profile.calling],
        key=lambda row: (-row.time.total, -row.inclusive.total),
    )
    for i, row in enumerate(rows):
        if row.location is not None:
            yield LineRow(
                id=i,
                line=text_of(row.location),
                where=line_label(row.location),
                inclusive=row.inclusive.total or None,
                **_figures(profile, row.time),
            )


def _modules(profile: Profile) -> Iterator[ModuleRow]:
    numbers = count()

    def walk(node: ModuleTime, depth: int) -> Iterator[ModuleRow]:
        for child in node.children:
            if child.time.total > profile.device / 200:
                name = "  " * depth + child.name
                yield ModuleRow(id=next(numbers), module=name, **_figures(profile, child.time))
                yield from walk(child, depth + 1)

    yield from walk(profile.tree, 0)


def _operators(profile: Profile) -> Iterator[OperatorRow]:
    for row in profile.operators:
        yield OperatorRow(id=row.name, operator=row.name, **_figures(profile, row.time))


def _kernels(profile: Profile) -> Iterator[KernelRow]:
    for i, row in enumerate(profile.instructions):
        places = "; ".join(map(line_label, row.locations[:2]))
        yield KernelRow(
            id=i,
            instruction=row.instruction,
            opcode=row.opcode,
            program=row.program,
            lines=places + (" ..." if len(row.locations) > 2 else ""),
            **_figures(profile, row.time),
        )


def _roofline(profile: Profile) -> tuple[Section, ...]:
    peak = profile.peak
    if peak is None or not profile.roofline:
        return ()
    rows, title = roofline.rows(profile), roofline.heading(peak)
    drawing = Chart("", None, title, html=lambda: roofline.drawing(profile), opened=True)
    return drawing, Table("roofline", columns(roofline.RoofRow, rows), rows, title)
