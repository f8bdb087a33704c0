"""Exports a profile as a Chrome JSON trace, for Perfetto and chrome://tracing.

There are three groups of tracks: host threads, device lanes, and lines of user code. Among the lines, a device event is
on the track of the line that most of its time belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .sources import line_label, text_of
from .summary import Profile

_HOST, _DEVICE, _LINES = 1, 2, 3


def trace(profile: Profile) -> dict[str, Any]:
    """The trace, ready for JSON."""
    return {"traceEvents": [*_tracks(profile), *_slices(profile)], "displayTimeUnit": "ms"}


def _tracks(profile: Profile) -> Iterator[dict[str, Any]]:
    for number, name in ((_HOST, "host"), (_DEVICE, "device"), (_LINES, "lines of code")):
        yield _name("process_name", number, 0, name)
        yield {
            "ph": "M",
            "name": "process_sort_index",
            "pid": number,
            "tid": 0,
            "args": {"sort_index": number},
        }
    for i, lane in enumerate(profile.recording.events.lanes):
        for process in (_HOST, _DEVICE):
            yield _name("thread_name", process, i + 1, lane.name)
    for i, location in enumerate(profile.attribution.locations):
        yield _name("thread_name", _LINES, i + 1, f"{line_label(location)}: {text_of(location)}")


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slices(profile: Profile) -> Iterator[dict[str, Any]]:
    events, attribution = profile.recording.events, profile.attribution
    line_of_event = np.full(len(events), -1)
    line_of_event[events.on_device] = attribution.location_of
    program_of_event = np.full(len(events), -1)
    program_of_event[events.on_device] = attribution.executable_of
    for i in range(len(events)):
        owner, line = int(program_of_event[i]), int(line_of_event[i])
        slice_ = {
            "ph": "X",
            "name": events.names[events.name[i]],
            "ts": int(events.start[i]) / 1e3,
            "dur": int(events.duration[i]) / 1e3,
            "pid": _HOST if owner < 0 else _DEVICE,
            "tid": int(events.lane[i]) + 1,
        }
        if owner >= 0:
            slice_["args"] = {"program": attribution.executables[owner].title}
        if line >= 0:
            slice_["args"]["line"] = str(attribution.locations[line])
            yield {**slice_, "pid": _LINES, "tid": line + 1}
        yield slice_
