"""The timeline of a profile as boxes. The events of a lane are in rows by their depth.

A page without a script cannot zoom, so only the busiest lanes and the longest events of each lane are drawn. A note
below the lane counts the other events.

The name of an event is the tooltip of its box. Where the style is taken off (GitHub, a notebook that is not trusted),
the boxes are empty, and the names of the lanes remain. Of an SVG, the names of all events would remain, as one long
text.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from .units import duration

if TYPE_CHECKING:
    from jaxtorch.insight.profile.events import Events
    from jaxtorch.insight.profile.summary import Profile

_ROW, _NAMES = 14, 150  # pixels
_LEAST = 0.05  # percent: the width of a box that can be seen
_MOST = 300  # pieces drawn
_LANES = 12
_COLOURS = ("#3b82f6", "#10b981", "#f59e0b", "#ec4899", "#8b5cf6", "#06b6d4", "#ef4444", "#84cc16")
_RUN = "jaxtorch: run"


def timeline(profile: Profile) -> str:
    """The drawing; "" if nothing ran."""
    events = profile.recording.events
    if not len(events) or not profile.recording.runs:
        return ""
    begin, end = profile.recording.runs[0][0], profile.recording.runs[-1][1]
    lanes = _busiest(events)
    scale = 100 / max(1, end - begin)
    rows = [
        f'<div style="display:flex"><div style="flex:none;width:{_NAMES}px;overflow:hidden">'
        f"{escape(events.lanes[lane].name[:22])}</div>"
        f'<div style="flex:1;min-width:0;overflow:hidden;margin-bottom:4px">'
        f"{_lane(events, lane, begin, scale, _MOST // len(lanes))}</div></div>"
        for lane in lanes
    ]
    return (
        f'<div role="img" aria-label="timeline of {duration(end - begin)}" '
        f'style="font-size:11px;line-height:{_ROW}px;text-align:left;white-space:nowrap">{_axis(end - begin)}'
        f"{''.join(rows)}</div>"
    )


def _axis(length: int) -> str:
    marks = "".join(f"<span>{duration(length * i / 4)} </span>" for i in range(5))
    style = f"display:flex;justify-content:space-between;margin-left:{_NAMES}px;opacity:.7"
    return f'<div style="{style}">{marks}</div>'


def _busiest(events: Events) -> list[int]:
    """The lanes to draw: first those of the device, then those of the host, each the busiest first."""
    self_times = np.bincount(events.lane, weights=events.self_time, minlength=len(events.lanes))
    order = sorted(
        range(len(events.lanes)), key=lambda i: (not events.lanes[i].device, -self_times[i])
    )
    return [i for i in order if self_times[i]][:_LANES]


def _lane(events: Events, lane: int, begin: int, scale: float, most: int) -> str:
    """The rows of a lane, and a note on what is left out."""
    named = np.array([not name.startswith(_RUN) for name in events.names])
    rows = np.flatnonzero((events.lane == lane) & (events.depth < 4) & named[events.name])
    rows = rows[np.argsort(-events.duration[rows], kind="stable")]
    drawn, omitted = rows[:most], rows[most:]
    parts = []
    for depth in np.unique(events.depth[drawn]).tolist():
        numbers = drawn[events.depth[drawn] == depth]
        parts.append(
            _boxes(events, numbers[np.argsort(events.start[numbers])].tolist(), begin, scale)
        )
    if len(omitted):
        time = duration(float(events.self_time[omitted].sum()))
        parts.append(
            f'<div style="opacity:.7">and {len(omitted)} shorter events, {time} in all</div>'
        )
    return "".join(parts)


def _boxes(events: Events, numbers: list[int], begin: int, scale: float) -> str:
    """Events that follow each other, as boxes in one row: each is placed by its distance from the one before."""
    boxes, at = [], 0.0
    for i in numbers:
        start, width = (events.start[i] - begin) * scale, max(_LEAST, events.duration[i] * scale)
        name = events.names[events.name[i]]
        colour = _COLOURS[events.name[i] % len(_COLOURS)] if events.program[i] >= 0 else "#888888"
        boxes.append(
            f'<i title="{escape(name)}: {duration(events.duration[i])}" style="margin-left:{max(0, start - at):.2f}%;'
            f'width:{width:.2f}%;background:{colour}8c"></i>'
        )
        at = max(at, start) + width
    return f'<div style="display:flex;height:{_ROW - 1}px;margin-bottom:1px">{"".join(boxes)}</div>'
