"""The events of an XLA profile as compact arrays: one row per event, with names in tables.

Each event is in a lane: a host thread, or a stream of a device. On the CPU, host threads are the device. So an event
belongs to the device if it names its HLO instruction, in any lane. The events of a lane nest: a loop is around its
body. `self_time` is the time of an event without nested events, so that its sum over all device events counts nothing
twice.

XLA numbers the runs of each executable in launch order (`run`). Runs that wait for inputs may start in another order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# Lanes of a device plane that repeat the events of the instruction lane in other groupings.
_REPEATED = {"XLA Modules", "Steps", "XLA TraceMe", "Framework Ops", "Source code"}
_NOISE = re.compile(r"^(end: |ThreadpoolListener::|ThunkExecutor::|SlinkyThreadPool|\$)")


@dataclass(frozen=True)
class Lane:
    """A sequence of events in time: a thread, or a stream of a device."""

    name: str
    device: bool


@dataclass(frozen=True)
class Program:
    """The module of a device event, as XLA names it.

    `id` is the `HloModuleProto.id`. A program from the persistent cache keeps the id that it got in the process that
    compiled it. So two programs may share an id, and the name distinguishes them.
    """

    id: int
    name: str


@dataclass(frozen=True, eq=False)
class Events:
    """The events of a profile, sorted by lane and start.

    Attributes:
        start: nanoseconds since the profile began.
        duration: nanoseconds.
        self_time: nanoseconds without nested events.
        lane: index into `lanes`.
        name: index into `names`; for a device event, its HLO instruction.
        program: index into `programs`, or -1 for a host event.
        run: XLA's run number, 0 on the host.
        depth: number of enclosing events in its lane.
    """

    start: np.ndarray
    duration: np.ndarray
    self_time: np.ndarray
    lane: np.ndarray
    name: np.ndarray
    program: np.ndarray
    run: np.ndarray
    depth: np.ndarray
    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    programs: tuple[Program, ...]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def on_device(self) -> np.ndarray:
        """A mask of the events that ran on the device."""
        return self.program >= 0

    def select(self, mask: np.ndarray) -> Events:
        """The events selected by a mask, with the same tables."""
        return replace(self, **{name: getattr(self, name)[mask] for name in _COLUMNS})


_COLUMNS = ("start", "duration", "self_time", "lane", "name", "program", "run", "depth")


class _Table:
    """Numbers values in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def read_events(profile: Any) -> Events:
    """The events of a `jax.profiler.ProfileData`."""
    rows: list[tuple[int, ...]] = []
    names, programs = _Table(), _Table()
    lanes: list[Lane] = []
    for plane in profile.planes:
        device = plane.name.startswith("/device:")
        if not device and not plane.name.startswith("/host:"):
            continue
        for line in plane.lines:
            if device and line.name in _REPEATED:
                continue
            rows_of_lane = [
                _row(event, len(lanes), names, programs)
                for event in line.events
                if not _NOISE.match(event.name)
            ]
            if rows_of_lane:
                label = (
                    f"{plane.name.removeprefix('/device:')} {line.name}" if device else line.name
                )
                lanes.append(Lane(_lane_name(label), device or _mostly_device(rows_of_lane)))
                rows += rows_of_lane
    return make_events(rows, tuple(lanes), tuple(names.numbers), tuple(programs.numbers))


def make_events(
    rows: Iterable[tuple[int, ...]],
    lanes: tuple[Lane, ...],
    names: tuple[str, ...],
    programs: tuple[Program, ...],
) -> Events:
    """Events from rows (start, duration, lane, name, program, run), in any order."""
    table = np.array(sorted(rows, key=lambda r: (r[2], r[0], -r[1])), np.int64).reshape(-1, 6)
    start, duration, lane, name, program, run = table.T
    self_time, depth = _nesting(start, duration, lane, program)
    return Events(
        start, duration, self_time, lane, name, program, run, depth, lanes, names, programs
    )


def _row(event: Any, lane: int, names: _Table, programs: _Table) -> tuple[int, ...]:
    stats = dict(event.stats)
    start, duration = int(event.start_ns), int(event.duration_ns)
    instruction = stats.get("hlo_op")
    if instruction is None or "program_id" not in stats:
        return start, duration, lane, names(event.name), -1, 0
    program = programs(Program(int(stats["program_id"]), str(stats.get("hlo_module", ""))))
    return start, duration, lane, names(instruction), program, int(stats.get("run_id", 0))


def _mostly_device(rows: list[tuple[int, ...]]) -> bool:
    """Whether a lane is a device thread: most of its events are device events. Host threads may run small programs."""
    return 2 * sum(row[4] >= 0 for row in rows) > len(rows)


def _lane_name(name: str) -> str:
    """The name of a lane, without the address of its thread pool.

    Example:
        >>> _lane_name("tf_XLAPjRtCpuClient/-7455935508566668832")
        'XLAPjRtCpuClient'
    """
    return re.sub(r"^tf_|/-?\d+$", "", name)


def _nesting(
    start: np.ndarray, duration: np.ndarray, lane: np.ndarray, program: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The self time and the depth of events sorted by lane and start.

    Host and device events nest separately, because a small program may run in the host thread, inside the call that
    launches it.
    """
    self_time = duration.copy()
    depth = np.zeros(len(start), np.int64)
    open_: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # (end, event)
    current = -1
    for i, (begin, length, lane_number, device) in enumerate(
        zip(start.tolist(), duration.tolist(), lane.tolist(), (program >= 0).tolist(), strict=True)
    ):
        if lane_number != current:
            current = lane_number
            open_ = {False: [], True: []}
        enclosing = open_[device]
        end = begin + length
        while enclosing and enclosing[-1][0] < end:
            # The end times are read one after the other, so an event may seem to end a little after the one around it.
            if enclosing[-1][0] - begin > length / 2:
                break
            enclosing.pop()
        if enclosing:
            self_time[enclosing[-1][1]] -= min(end, enclosing[-1][0]) - begin
        depth[i] = len(enclosing)
        enclosing.append((end, i))
    return np.maximum(self_time, 0), depth
