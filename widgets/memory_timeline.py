"""`%%jax memory`: the memory of a cell over time, and the tensors that held the most of it at the peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Annotated

from .locations import label
from .page import Chart, Column, Note, Notes, Page, Row, Table, columns
from .units import counted, duration, size, written
from .view import PageView

if TYPE_CHECKING:
    from jaxtorch.insight.allocations import Held, Timeline

_MOST_PROGRAMS = 5
_WIDTH, _HEIGHT = 640, 120
_COLUMNS = 80  # of a terminal
_FILL = "#3b82f6"


@dataclass(frozen=True)
class HeldRow(Row):
    """A tensor that was there at the peak."""

    name: Annotated[
        str, Column("name", "code", "the path from a variable, when the cell had run", most=30)
    ]
    bytes: Annotated[int, Column("size", "bytes")]
    share: Annotated[float | None, Column("share", "share", "of the peak", wide=True)]
    shape: Annotated[str, Column("shape", "code")]
    dtype: Annotated[str, Column("dtype", "code")]
    location: Annotated[str, Column("made at", help="of a tensor that is written, the last write")]
    by: Annotated[str, Column("by", wide=True, most=20)]
    made: Annotated[str, Column("made", help="its memory, after the start of the cell")]
    freed: Annotated[str, Column("freed", help="after the start of the cell")]


class MemoryTimelineView(PageView):
    """Shows a `Timeline`. It has no live form, because it never changes."""

    kind = ""

    def __init__(self, timeline: Timeline, title: str):
        self.timeline, self.title = timeline, title

    def page(self) -> Page:
        timeline = self.timeline
        rows = [_row(i, held, timeline.peak) for i, held in enumerate(timeline.held, 1)]
        facts = (
            f"before {size(timeline.before)}",
            f"after {size(timeline.after)}",
            f"{_seconds(timeline.seconds)} total",
        )
        omitted = counted(timeline.others, "smaller tensor")
        needs = [
            Note(
                f"While {program.name}{f' ({program.part})' if program.part else ''} runs, "
                f"XLA needs {size(temporary)} more for intermediate values"
            )
            for program, temporary in timeline.programs[:_MOST_PROGRAMS]
        ]
        return Page(
            f"{self.title}: peak {size(timeline.peak)} at {_seconds(timeline.peak_at)}",
            facts,
            sections=(
                Chart("", None, text=lambda: _blocks(timeline), html=lambda: drawing(timeline)),
                *((Notes(tuple(needs), text_most=_MOST_PROGRAMS),) if needs else ()),
                Table(
                    "held",
                    columns(HeldRow, rows),
                    rows,
                    "At the peak, largest first",
                    name="Tensors at the peak",
                    omitted=f"{omitted} left out." if timeline.others else "",
                    empty="No tensor of 32 KiB or more.",
                    text_rows=12,
                ),
            ),
        )


def _row(number: int, held: Held, peak: int) -> HeldRow:
    return HeldRow(
        id=number,
        name=held.name or "(no name)",
        bytes=held.nbytes,
        share=held.nbytes / peak if peak else None,
        shape=f"[{', '.join(map(str, held.shape))}]",
        dtype=held.dtype,
        location=label(held.location),
        by=held.made_by.split(".")[0],
        made="before" if held.made is None else _seconds(held.made),
        freed="" if held.freed is None else _seconds(held.freed),
    )


def _seconds(seconds: float) -> str:
    return written(seconds, "seconds")


def sampled(points: Sequence[tuple[float, int]], seconds: float, count: int) -> list[int]:
    """The most bytes held in each of `count` equal stretches of time.

    Example:
        >>> sampled([(0.0, 3), (0.6, 9), (0.7, 1)], 1.0, 2)
        [3, 9]
    """
    highest = [0] * count
    for (start, held), (end, _) in zip(points, [*points[1:], (seconds, 0)], strict=True):
        first, last = (
            min(count - 1, int(count * t / seconds)) if seconds else 0 for t in (start, end)
        )
        for i in range(first, max(first, last) + 1):
            highest[i] = max(highest[i], held)
    return highest


def _blocks(timeline: Timeline) -> str:
    """The memory over time as a line of blocks, with the peak below it."""
    held = sampled(timeline.points, timeline.seconds, _COLUMNS)
    line = "".join("▁▂▃▄▅▆▇█"[round(7 * b / (timeline.peak or 1))] for b in held)
    at = min(_COLUMNS - 1, held.index(max(held)))
    mark = f"^ {size(timeline.peak)}"
    return f"{line}\n{' ' * min(at, _COLUMNS - len(mark))}{mark}"


def drawing(timeline: Timeline) -> str:
    """The memory over time as an area, with the peak marked. Its texts are outside of the SVG, which may be removed."""
    most, seconds = timeline.peak or 1, timeline.seconds or 1.0

    def across(moment: float) -> float:
        return _WIDTH * moment / seconds

    def down(held: int) -> float:
        return _HEIGHT - _HEIGHT * held / most

    path = f"M0 {_HEIGHT}" + "".join(
        f"L{across(start):.1f} {down(before):.1f}L{across(start):.1f} {down(held):.1f}"
        for (_, before), (start, held) in zip(
            [timeline.points[0], *timeline.points], timeline.points, strict=False
        )
    )
    path += f"L{_WIDTH} {down(timeline.points[-1][1]):.1f}L{_WIDTH} {_HEIGHT}Z"
    at = across(timeline.peak_at)
    shown = (
        f'<path d="{path}" fill="{_FILL}" fill-opacity="0.35" stroke="{_FILL}"/>'
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="-6" y2="{_HEIGHT}" stroke="currentColor" stroke-dasharray="3 3"/>'
        f'<circle cx="{at:.1f}" cy="0" r="4" fill="currentColor"/>'
    )
    percent = 100 * at / _WIDTH
    side = (
        f"width:{percent:.1f}%;text-align:right" if percent > 50 else f"margin-left:{percent:.1f}%"
    )
    ticks = "".join(f"<span>{duration(seconds * 1e9 * part)} </span>" for part in (0, 0.5, 1))
    name = f"memory over {duration(seconds * 1e9)}, at most {size(timeline.peak)}"
    return (
        f'<div style="max-width:{_WIDTH}px;margin:4px 0;font-size:12px">'
        f'<div style="{side};white-space:nowrap">peak {size(timeline.peak)}</div>'
        f'<svg role="img" aria-label="{escape(name)}" viewBox="0 -6 {_WIDTH} {_HEIGHT + 8}" '
        f'style="display:block;width:100%;overflow:visible">{shown}</svg>'
        f'<div style="display:flex;justify-content:space-between">{ticks}</div></div>'
    )
