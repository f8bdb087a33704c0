"""A profile as the live form reads it: JSON, with the events as columns. `ProfileView` says what each key holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtorch.insight.profile.sources import text_of

if TYPE_CHECKING:
    from jaxtorch.insight.profile.summary import Node, Profile, Time


def packed(profile: Profile, title: str) -> dict[str, Any]:
    """All of it."""
    recording = profile.recording
    host = asdict(profile.host)
    host.pop("device_busy")
    places = {row.place: i for i, row in enumerate(profile.lines)}
    return {
        "version": 1,
        "title": title,
        "repeat": profile.repeat,
        "wall": profile.wall,
        "device": profile.device,
        "busy": profile.busy,
        "idle": profile.idle,
        "attributed": profile.attributed,
        "host": host,
        "memory": None if recording.memory is None else asdict(recording.memory),
        "peak": None if profile.peak is None else asdict(profile.peak),
        "lines": [
            {
                "id": i,
                "file": row.place.file,
                "cell": row.place.cell,
                "line": row.place.line,
                "source": text_of(row.place),
                **_time(row.time),
            }
            for i, row in enumerate(profile.lines)
            if row.place is not None
        ],
        "unattributed": _time(profile.unattributed),
        "tree": _node(profile.tree),
        "operators": [
            {"id": i, "name": row.name, **_time(row.time)}
            for i, row in enumerate(profile.operators)
        ],
        "instructions": [
            {
                "id": i,
                "program": row.program,
                "number": row.number,
                "name": row.instruction,
                "opcode": row.opcode,
                "lines": [places[place] for place in row.places],
                **_time(row.time),
            }
            for i, row in enumerate(profile.instructions)
        ],
        "events": _events(profile, places),
        "names": list(recording.events.names),
        "lanes": [asdict(lane) for lane in recording.events.lanes],
        "runs": [list(run) for run in recording.runs],
    }


def _events(profile: Profile, places: dict[Any, int]) -> dict[str, list[int]]:
    events, attribution = profile.recording.events, profile.attribution
    line = np.full(len(events), -1)
    numbers = np.array([*(places[p] for p in attribution.places), -1])  # the last for "none"
    line[events.on_device] = numbers[attribution.place_of]
    columns = {
        "start": events.start,
        "duration": events.duration,
        "lane": events.lane,
        "name": events.name,
        "depth": events.depth,
        "line": line,
    }
    return {name: column.tolist() for name, column in columns.items()}


def _time(time: Time) -> dict[str, float]:
    return asdict(time)


def _node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        **_time(node.time),
        "own": node.own.total,
        "children": [_node(child) for child in node.children],
    }
