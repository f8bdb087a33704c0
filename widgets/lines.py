"""`%%jax lines`: the source code with the device time of each line, in the style of `%lprun`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from .page import Code, Column, Page, Row, Table, columns
from .profiled import ProfiledView
from .units import duration, share
from .view import PageView

if TYPE_CHECKING:
    from jaxtorch.insight.profile.sources import CodeSource, Line
    from jaxtorch.insight.profile.summary import Profile, Time


IDLE = "Nothing ran on the device."


@dataclass(frozen=True)
class CodeRow(Row):
    """A line of code with its time on the device. The time is None if the line did nothing on the device."""

    line: Annotated[int, Column("line", "number")]
    code: Annotated[str, Column("code", "code", always=True)]
    device: Annotated[float | None, Column("device", "nanoseconds", mark="inferred")]
    share: Annotated[float | None, Column("share", "share")]
    inclusive: Annotated[
        float | None, Column("inclusive", "nanoseconds", "the line and all it called", wide=True)
    ]
    backward: Annotated[float | None, Column("backward", "nanoseconds", wide=True)]
    times: Annotated[float | None, Column("times", "count", "instructions run", wide=True)]
    ops: Annotated[float | None, Column("ops", "amount", wide=True)]
    bytes: Annotated[float | None, Column("bytes", "bytes", wide=True)]
    location: Annotated[str, Column("where", wide=True)]
    inferred: bool


class LinesView(ProfiledView, PageView):
    """The lines of a `Profile` that took time; with `every`, those beside them too."""

    kind = "page"
    every = False

    def page(self) -> Page:
        profile, sources = self.profile, self.sources()
        runs = f"{profile.repeat} runs, each " if profile.repeat > 1 else ""
        facts = [
            f"{runs}{duration(profile.wall)}",
            f"{duration(profile.device)} on the device",
        ]
        unattributed = profile.unattributed.total
        if unattributed:
            facts.append(
                f"{duration(unattributed)} ({share(unattributed, profile.device)}) without a line"
            )
        code = source_code(profile, sources, "In their order", self.every)
        table = slowest(code, "The slowest first", text_rows=0)
        return Page(
            self.title or "Lines",
            tuple(facts),
            sections=(*code, table),
        )


def source_code(
    profile: Profile, sources: list[CodeSource], title: str, every: bool = False
) -> list[Code[CodeRow]]:
    """The source code with the time of each line."""
    sections = []
    for i, source in enumerate(sources):
        rows = [_row(profile, line) for line in source.lines]
        # Leave out the time of a source without self time, such as a cell that only calls others.
        time = f": {duration(source.total)}" if source.total else ""
        shown = tuple(c for c in columns(CodeRow, rows) if c.key != "line")
        name = f"{source.title}{time}"
        sections.append(Code(f"source {i}", shown, rows, title, name, "share", every))
    return sections


def slowest(code: list[Code[CodeRow]], title: str, text_rows: int) -> Table:
    """The lines that took time, the slowest first."""
    rows = [
        replace(row, id=f"{source.key} {row.id}", location=source.name.partition(":")[0])
        for source in code
        for row in source.rows
        if row.device is not None or row.inclusive is not None
    ]
    rows.sort(key=lambda row: (-(row.device or 0), -(row.inclusive or 0)))
    return Table("slow", columns(CodeRow, rows), rows, title, empty=IDLE, text_rows=text_rows)


def _row(profile: Profile, line: Line) -> CodeRow:
    time = line.time
    return CodeRow(
        id=line.number,
        line=line.number,
        device=None if time is None else time.total,
        share=None if time is None or not profile.device else time.total / profile.device,
        inclusive=None if line.inclusive is None else line.inclusive.total,
        backward=None if time is None else time.backward or None,
        times=None if time is None else time.count,
        ops=None if time is None else time.flops or None,
        bytes=None if time is None else time.bytes or None,
        location="",
        code=line.text,
        inferred=time is not None and is_estimate(time),
    )


def is_estimate(time: Time) -> bool:
    """Whether a noticeable part of a time is inferred."""
    return time.inferred > 0.05 * time.total
