"""The timeline of a profile as boxes. The events of a lane are in rows by their depth.

A page without a script cannot zoom, so only the busiest lanes and the longest events of each lane are drawn. A note
below the lane counts the other events. The colours are those of the categories, as everywhere in a profile.

The name of an event is the tooltip of its box. Without the style (GitHub, a notebook that is not trusted), the boxes
are empty, and only the names of the lanes remain. An SVG would leave the names of all events as one long text.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from jaxtorch.insight.profile.categories import CATEGORIES, categories

from .profile_data import COLOURS
from .units import duration

if TYPE_CHECKING:
    from jaxtorch.insight.profile.events import Events
    from jaxtorch.insight.profile.summary import Profile

_ROW, _NAMES = 14, 150  # pixels
_LEAST = 0.05  # percent: the width of a box that can be seen
MOST = 300  # pieces drawn
_LANES = 12


def timeline(profile: Profile, most: int = MOST) -> str:
    """The drawing with at most this number of pieces; "" if nothing ran."""
    events = profile.recording.events
    if not len(events) or not profile.recording.runs:
        return ""
    begin, end = profile.recording.runs[0][0], profile.recording.runs[-1][1]
    lanes = _busiest(events)
    scale = 100 / max(1, end - begin)
    colour = [COLOURS[name] for name in CATEGORIES]
    colours = [colour[i] for i in categories(profile.recording, profile.attribution).tolist()]
    rows = [
        f'<div style="display:flex"><div style="flex:none;width:{_NAMES}px;overflow:hidden">'
        f"{escape(events.lanes[lane].name[:22])}</div>"
        f'<div style="flex:1;min-width:0;overflow:hidden;margin-bottom:4px">'
        f"{_lane(events, lane, begin, scale, most // len(lanes), colours)}</div></div>"
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
    """The lanes to draw, in their order. If there are many, those of the device first, then the busiest."""
    self_times = np.bincount(events.lane, weights=events.self_time, minlength=len(events.lanes))
    order = sorted(
        range(len(events.lanes)), key=lambda i: (not events.lanes[i].device, -self_times[i])
    )
    return sorted([i for i in order if self_times[i]][:_LANES])


def _lane(
    events: Events, lane: int, begin: int, scale: float, most: int, colours: list[str]
) -> str:
    """The rows of a lane, and a note on omitted events."""
    rows = np.flatnonzero((events.lane == lane) & (events.depth < 4))
    rows = rows[np.argsort(-events.duration[rows], kind="stable")]
    drawn, omitted = rows[:most], rows[most:]
    parts = []
    for depth in np.unique(events.depth[drawn]).tolist():
        numbers = drawn[events.depth[drawn] == depth]
        parts.append(
            _boxes(
                events, numbers[np.argsort(events.start[numbers])].tolist(), begin, scale, colours
            )
        )
    if len(omitted):
        time = duration(float(events.self_time[omitted].sum()))
        parts.append(
            f'<div style="opacity:.7">and {len(omitted)} shorter events, {time} total</div>'
        )
    return "".join(parts)


def _boxes(events: Events, numbers: list[int], begin: int, scale: float, colours: list[str]) -> str:
    """Events that follow each other, as boxes in one row: each is placed by its distance from the one before."""
    boxes, at = [], 0.0
    for i in numbers:
        start, width = (events.start[i] - begin) * scale, max(_LEAST, events.duration[i] * scale)
        name = events.names[events.name[i]]
        boxes.append(
            f'<i title="{escape(name)}: {duration(events.duration[i])}" style="margin-left:{max(0, start - at):.2f}%;'
            f'width:{width:.2f}%;background:{colours[i]}8c"></i>'
        )
        at = max(at, start) + width
    return f'<div style="display:flex;height:{_ROW - 1}px;margin-bottom:1px">{"".join(boxes)}</div>'
