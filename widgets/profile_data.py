"""A profile as JSON for the live form, with the events as columns. `ProfileView` documents the keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtorch.insight.profile.sources import text_of

if TYPE_CHECKING:
    from jaxtorch.insight.profile.join import Share
    from jaxtorch.insight.profile.summary import Node, Profile, Time


def packed(profile: Profile, title: str) -> dict[str, Any]:
    """The whole profile."""
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
                "inclusive": row.inclusive.total,
                **_time(row.time),
            }
            for i, row in enumerate([*profile.lines, *profile.calling])
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
    on_device = events.on_device
    linked = {name: np.full(len(events), -1) for name in ("operator", "module", "instruction")}
    owners = _owners(profile)
    keys = zip(attribution.executable_of.tolist(), events.name[on_device].tolist(), strict=True)
    rows = np.array([owners[executable, events.names[name]] for executable, name in keys])
    for column, values in zip(linked.values(), rows.reshape(-1, 3).T, strict=True):
        column[on_device] = values
    columns = {
        **linked,
        "start": events.start,
        "duration": events.duration,
        "lane": events.lane,
        "name": events.name,
        "depth": events.depth,
        "line": line,
    }
    return {name: column.tolist() for name, column in columns.items()}


def _owners(profile: Profile) -> dict[tuple[int, str], tuple[int, int, int]]:
    """For an executable's instruction, the rows of operators, modules and instructions that take most of its time."""
    attribution = profile.attribution
    operators = {row.name: i for i, row in enumerate(profile.operators)}
    instructions = {
        (row.program, row.number, row.instruction): i for i, row in enumerate(profile.instructions)
    }
    modules = {path: i for i, path in enumerate(_paths(profile.tree))}
    most: dict[tuple[int, str], Share] = {}
    for share in attribution.shares:
        key = share.executable, share.instruction
        if key not in most or share.own > most[key].own:
            most[key] = share
    found = {}
    for (number, name), share in most.items():
        executable = attribution.executables[number]
        program = executable.info.id if executable.info is not None else None
        found[number, name] = (
            operators.get(share.origin.operator, -1),
            modules.get(share.origin.scope, -1),
            instructions.get((executable.title, program, name), -1),
        )
    return found


def _paths(node: Node, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The module paths of a tree in the order in which `data()` writes them, without the root."""
    for child in node.children:
        path = (*above, child.name)
        yield path
        yield from _paths(child, path)


def _time(time: Time) -> dict[str, float]:
    return asdict(time)


def _node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        **_time(node.time),
        "own": node.own.total,
        "children": [_node(child) for child in node.children],
    }
