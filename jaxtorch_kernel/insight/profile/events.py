"""The events of an XLA profile as compact arrays: one row per event, with names in tables.

Each event is in a lane: a host thread, or a stream of a device. On the CPU, host threads are the device. So an event
belongs to the device if it names its HLO instruction, in any lane. The events of a lane nest: a loop is around its
body. `self_time` is the time of an event without nested events, so that its sum over all device events counts nothing
twice.

XLA numbers the runs of each executable in launch order (`run`). Runs that wait for inputs may start in another order.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .lanes import Lane, lanes_of

# Lanes of a device plane that repeat the events of the instruction lane in other groupings.
_REPEATED = {"XLA Modules", "Steps", "XLA TraceMe", "Framework Ops", "Source code"}
# An event of no length in the calling thread, which says which lane is its.
CALLER = "jaxtorch: the calling thread"
_NOISE = re.compile(rf"^({CALLER}|end: |ThreadpoolListener::|ThunkExecutor::|SlinkyThreadPool|\$)")


@dataclass(frozen=True)
class EventModule:
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
    programs: tuple[EventModule, ...]

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


class Found(NamedTuple):
    """What one profile of XLA has: its start since the epoch, its last event by the common clock, its events."""

    zero: int
    end: int
    events: int


class Reader:
    """Reads profiles that follow each other into one table of events.

    Attributes:
        on_device: whether some event was one of the device.
    """

    def __init__(self) -> None:
        self._names, self._programs, self._lanes = _Table(), _Table(), _Table()
        self._rows: list[np.ndarray] = []
        self._caller = -1
        self.on_device = False
        self._noise: dict[str, bool] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def read(self, profile: Any, start: int) -> Found:
        """Add the events of a `jax.profiler.ProfileData` that begins at `start`."""
        rows: list[tuple[int, ...]] = []
        count = zero = 0
        for plane in profile.planes:
            zero = zero or next((int(v) for n, v in plane.stats if n == "profile_start_time"), 0)
            device = plane.name.startswith("/device:")
            if not device and not plane.name.startswith("/host:"):
                continue
            seen: dict[str, int] = {}
            for line in plane.lines:
                if device and line.name in _REPEATED:
                    continue
                seen[line.name] = nth = seen.get(line.name, 0) + 1
                lane = self._lanes((plane.name, line.name, nth))
                for event in line.events:
                    count += 1
                    name = event.name
                    noise = self._noise.get(name)
                    if noise is None:
                        noise = self._noise[name] = _NOISE.match(name) is not None
                    if not noise:
                        rows.append(self._row(event, name, lane, start))
                    elif name == CALLER:
                        self._caller = lane
        table = np.array(rows, np.int64).reshape(-1, 6)
        self._rows.append(table)
        self.on_device = self.on_device or bool((table[:, 4] >= 0).any())
        end = int((table[:, 0] + table[:, 1]).max(initial=start))
        return Found(zero or time.time_ns(), end, count)

    def _row(self, event: Any, name: str, lane: int, shift: int) -> tuple[int, ...]:
        stats = dict(event.stats)
        start, duration = shift + int(event.start_ns), int(event.duration_ns)
        instruction = stats.get("hlo_op")
        if instruction is None or "program_id" not in stats:
            return start, duration, lane, self._names(name), -1, 0
        program = self._programs(
            EventModule(int(stats["program_id"]), str(stats.get("hlo_module", "")))
        )
        run = int(stats.get("run_id", 0))
        return start, duration, lane, self._names(instruction), program, run

    def finish(self) -> tuple[Events, int]:
        """All events, and the lane of the calling thread; -1 if it has none."""
        table = np.concatenate([np.empty((0, 6), np.int64), *self._rows])
        self._rows = [table]
        used, lane = np.unique(table[:, 2], return_inverse=True)
        table[:, 2] = lane.reshape(-1)
        on_device = np.bincount(table[:, 2], weights=table[:, 4] >= 0, minlength=len(used))
        # A lane is a device's thread if most of its events are of the device. Host threads may run small programs.
        mostly = 2 * on_device > np.bincount(table[:, 2], minlength=len(used))
        keys = list(self._lanes.numbers)
        caller = list(used).index(self._caller) if self._caller in used else -1
        lanes = lanes_of([keys[n] for n in used], mostly.tolist(), caller)
        names, programs = tuple(self._names.numbers), tuple(self._programs.numbers)
        return make_events(table, lanes, names, programs), caller


def make_events(
    rows: Iterable[tuple[int, ...]] | np.ndarray,
    lanes: tuple[Lane, ...],
    names: tuple[str, ...],
    programs: tuple[EventModule, ...],
) -> Events:
    """Events from rows (start, duration, lane, name, program, run), in any order."""
    table = rows if isinstance(rows, np.ndarray) else np.array(list(rows), np.int64).reshape(-1, 6)
    start, duration, lane, name, program, run = table[
        np.lexsort((-table[:, 1], table[:, 0], table[:, 2]))
    ].T
    self_time, depth = _nesting(start, duration, lane, program)
    return Events(
        start, duration, self_time, lane, name, program, run, depth, lanes, names, programs
    )


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
