"""What a profile of XLA's holds, as compact arrays: one row for each event, its names in tables.

Events lie in lanes: a thread of the host, or a stream of a device. On the CPU the device *is* threads of the host, so
that an event belongs to the device if it names the HLO instruction that it runs, whatever lane it lies in. Events of a
lane nest (a loop around its body); `own` is an event's time without what lies within, so that the sum of all `own` of
the device counts nothing twice.

XLA numbers the runs of each executable in the order of their launches (`run`), which is not the order in which they
start where they wait for inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# Lanes of a device's plane that repeat, in other groupings, what the lane of instructions says.
_REPEATED = {"XLA Modules", "Steps", "XLA TraceMe", "Framework Ops", "Source code"}
_NOISE = re.compile(r"^(end: |ThreadpoolListener::|ThunkExecutor::|SlinkyThreadPool|\$)")


@dataclass(frozen=True)
class Lane:
    """Where events follow each other in time: a thread, or a stream of a device."""

    name: str
    device: bool


@dataclass(frozen=True)
class Program:
    """Which module an event of the device runs, as XLA names it.

    `id` is the `HloModuleProto.id`. A program that comes from the persistent cache keeps the id of the process that
    compiled it, so that two may share one: the name tells them apart.
    """

    id: int
    name: str


@dataclass(frozen=True, eq=False)
class Events:
    """The events of a profile, sorted by lane and start.

    Attributes:
        start: nanoseconds since the profile began.
        duration: nanoseconds.
        own: nanoseconds without the events within.
        lane: index into `lanes`.
        name: index into `names`; for an event of the device, its HLO instruction.
        program: index into `programs`, or -1 for an event of the host.
        run: XLA's number of the launch, 0 on the host.
        depth: how many events of its lane lie around it.
    """

    start: np.ndarray
    duration: np.ndarray
    own: np.ndarray
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
        """Which of them ran on the device."""
        return self.program >= 0

    def chosen(self, mask: np.ndarray) -> Events:
        """Those of a mask, with the same tables."""
        return replace(self, **{name: getattr(self, name)[mask] for name in _COLUMNS})


_COLUMNS = ("start", "duration", "own", "lane", "name", "program", "run", "depth")


class _Table:
    """Values by number, in the order in which they were met."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def read(profile: Any) -> Events:
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
            found = [
                _row(event, len(lanes), names, programs)
                for event in line.events
                if not _NOISE.match(event.name)
            ]
            if found:
                label = (
                    f"{plane.name.removeprefix('/device:')} {line.name}" if device else line.name
                )
                lanes.append(Lane(_lane_name(label), device or _mostly_device(found)))
                rows += found
    return made(rows, tuple(lanes), tuple(names.numbers), tuple(programs.numbers))


def made(
    rows: Iterable[tuple[int, ...]],
    lanes: tuple[Lane, ...],
    names: tuple[str, ...],
    programs: tuple[Program, ...],
) -> Events:
    """Events of rows (start, duration, lane, name, program, run), in any order."""
    table = np.array(sorted(rows, key=lambda r: (r[2], r[0], -r[1])), np.int64).reshape(-1, 6)
    start, duration, lane, name, program, run = table.T
    own, depth = _nested(start, duration, lane, program)
    return Events(start, duration, own, lane, name, program, run, depth, lanes, names, programs)


def _row(event: Any, lane: int, names: _Table, programs: _Table) -> tuple[int, ...]:
    stats = dict(event.stats)
    start, duration = int(event.start_ns), int(event.duration_ns)
    instruction = stats.get("hlo_op")
    if instruction is None or "program_id" not in stats:
        return start, duration, lane, names(event.name), -1, 0
    program = programs(Program(int(stats["program_id"]), str(stats.get("hlo_module", ""))))
    return start, duration, lane, names(instruction), program, int(stats.get("run_id", 0))


def _mostly_device(rows: list[tuple[int, ...]]) -> bool:
    """Whether a thread is there for the device; a host's thread may run a small program, too."""
    return 2 * sum(row[4] >= 0 for row in rows) > len(rows)


def _lane_name(name: str) -> str:
    """XLA's threads have the address of their pool in the name, which means nothing to a reader.

    Example:
        >>> _lane_name("tf_XLAPjRtCpuClient/-7455935508566668832")
        'XLAPjRtCpuClient'
    """
    return re.sub(r"^tf_|/-?\d+$", "", name)


def _nested(
    start: np.ndarray, duration: np.ndarray, lane: np.ndarray, program: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The own time and the depth of events sorted by lane and start.

    Host and device are nested apart: a small program runs in the host's thread, inside the call that launches it.
    """
    own = duration.copy()
    depth = np.zeros(len(start), np.int64)
    open_: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # (end, event)
    current = -1
    for i, (begin, length, place, device) in enumerate(
        zip(start.tolist(), duration.tolist(), lane.tolist(), (program >= 0).tolist(), strict=True)
    ):
        if place != current:
            current = place
            open_ = {False: [], True: []}
        around = open_[device]
        end = begin + length
        while around and around[-1][0] < end:
            # Clocks are read one after the other: an event may seem to end a little after the one around it.
            if around[-1][0] - begin > length / 2:
                break
            around.pop()
        if around:
            own[around[-1][1]] -= min(end, around[-1][0]) - begin
        depth[i] = len(around)
        around.append((end, i))
    return np.maximum(own, 0), depth
