"""The category of each event: the activity of its device or thread."""

from __future__ import annotations

import numpy as np

from .events import Events
from .hosts import ACTIVITIES, Spans, spans_of, union
from .join import Attribution
from .record import Recording

# The parts of the wall time and of the device's time. Their order is that of the numbers in `categories`.
CATEGORIES = (
    "forward",
    "backward",
    "idle",
    "compiling",
    "launching",
    "transfers",
    "waiting",
    "Python",
)


def categories(recording: Recording, attribution: Attribution) -> np.ndarray:
    """For each event, its index in `CATEGORIES`.

    An event of a thread gets the first of compiling, waiting, transfers and launching that contains it; otherwise
    Python.
    """
    events = recording.events
    result = np.full(len(events), CATEGORIES.index("Python"))
    for lane in range(len(events.lanes)):
        rows = np.flatnonzero((events.lane == lane) & ~events.on_device)
        activities = _activities(events.select(rows), recording, lane)
        for name, spans in reversed(activities):
            result[rows[_within(events.start[rows], spans)]] = CATEGORIES.index(name)
    names = np.array([CATEGORIES.index("forward"), CATEGORIES.index("backward")])
    result[events.on_device] = names[attribution.backward.astype(int)]
    return result


def _activities(events: Events, recording: Recording, lane: int) -> list[tuple[str, Spans]]:
    backward = recording.events.lanes[lane].backward
    compiled = [
        (c.start, c.end)
        for c in recording.compilations
        if (backward if c.backward else lane == recording.lane)
    ]
    spans = [("compiling", union(np.array(compiled, np.int64).reshape(-1, 2)))]
    for name, pattern in ACTIVITIES:
        numbers = [i for i, text in enumerate(events.names) if pattern.match(text)]
        spans.append((name, union(spans_of(events.select(np.isin(events.name, numbers))))))
    return spans


def _within(times: np.ndarray, spans: Spans) -> np.ndarray:
    """A mask of the times within one of the disjoint spans."""
    if not len(spans):
        return np.zeros(len(times), bool)
    nth = np.searchsorted(spans[:, 0], times, side="right") - 1
    return (nth >= 0) & (times < spans[np.maximum(nth, 0), 1])
