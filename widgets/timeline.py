"""The timeline of a profile as inline SVG. The events of a lane are in rows by their depth.

A page without a script cannot zoom, so only the busiest lanes and the longest events of each lane are drawn. A note
below the lane counts the other events. The colours are those of the categories, as everywhere in a profile.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from jaxtorch.insight.profile.categories import CATEGORIES, categories

from .page_text import shortened
from .profile_data import COLOURS
from .units import duration

if TYPE_CHECKING:
    from jaxtorch.insight.profile.events import Events
    from jaxtorch.insight.profile.summary import Profile

_WIDTH, _ROW, _NAMES = 1000, 14, 150
MOST = 300  # pieces drawn
_LANES = 12


def timeline(profile: Profile, most: int = MOST) -> str:
    """The drawing with at most so many pieces; "" if nothing ran."""
    events = profile.recording.events
    if not len(events) or not profile.recording.runs:
        return ""
    begin, end = profile.recording.runs[0][0], profile.recording.runs[-1][1]
    lanes = _busiest(events)
    scale = (_WIDTH - _NAMES) / max(1, end - begin)
    colour = [COLOURS[name] for name in CATEGORIES]
    colours = [colour[i] for i in categories(profile.recording, profile.attribution).tolist()]
    rows, top = [], 16
    for lane in lanes:
        pieces, height = _lane(events, lane, begin, scale, most // len(lanes), colours)
        name = escape(events.lanes[lane].name[:22])
        rows.append(
            f'<text x="0" y="{top + 11}" font-size="11" fill="currentColor">{name}</text>'
            f'<g transform="translate({_NAMES},{top})" fill="currentColor" fill-opacity=".6" font-size="9">{pieces}</g>'
        )
        top += height * _ROW + 4
    axis = "".join(
        f'<text x="{_NAMES + (_WIDTH - _NAMES) * i / 4:.0f}" y="10" font-size="10" fill="currentColor" '
        f'opacity=".7" text-anchor="{"end" if i == 4 else "start"}">{duration((end - begin) * i / 4)}</text>'
        for i in range(5)
    )
    return (
        f'<svg role="img" aria-label="timeline of {duration(end - begin)}" viewBox="0 0 {_WIDTH} {top}" '
        f'style="width:100%;height:auto;max-height:420px" xmlns="http://www.w3.org/2000/svg">{axis}{"".join(rows)}</svg>'
    )


def _busiest(events: Events) -> list[int]:
    """The lanes to draw, in their order. If there are many, those of the device first, then the busiest."""
    self_times = np.bincount(events.lane, weights=events.self_time, minlength=len(events.lanes))
    order = sorted(
        range(len(events.lanes)), key=lambda i: (not events.lanes[i].device, -self_times[i])
    )
    return sorted([i for i in order if self_times[i]][:_LANES])


def _lane(
    events: Events, lane: int, begin: int, scale: float, most: int, colours: list[str]
) -> tuple[str, int]:
    """The rectangles of a lane, and the number of rows that they take."""
    rows = np.flatnonzero((events.lane == lane) & (events.depth < 4))
    rows = rows[np.argsort(-events.duration[rows], kind="stable")]
    drawn, omitted = np.sort(rows[:most]), rows[most:]
    least = int(events.depth[rows].min(initial=4))
    depths = 1 + int(events.depth[drawn].max(initial=least)) - least
    pieces = []
    for i in drawn.tolist():
        x, width = (events.start[i] - begin) * scale, max(0.4, events.duration[i] * scale)
        y, name = (events.depth[i] - least) * _ROW, events.names[events.name[i]]
        label = ""
        if width > 7 * min(len(name), 6):
            fitting = escape(shortened(name, int(width / 6)))
            label = f'<text x="{x + 2:.1f}" y="{y + 10}" fill-opacity="1">{fitting}</text>'
        pieces.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 1}" fill="{colours[i]}">'
            f"<title>{escape(name)}: {duration(events.duration[i])}</title></rect>{label}"
        )
    if len(omitted):
        pieces.append(
            f'<text x="0" y="{depths * _ROW + 9}" fill-opacity=".8">and {len(omitted)} '
            f"shorter events, {duration(float(events.self_time[omitted].sum()))} in all</text>"
        )
        depths += 1
    return "".join(pieces), depths
