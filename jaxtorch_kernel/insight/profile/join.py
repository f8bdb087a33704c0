"""From events of the device to lines, modules, operators and directions.

An event names its program and its instruction; the program's HLO says where the instruction comes from. Two things
stand in the way, and are dealt with here:

* **One eager program serves many lines.** Its HLO has the line that compiled it first. The launches that the dispatch
  recorded have the right ones: XLA numbers the runs of a program in the order of their launches, so that the n-th
  launch is the n-th number.
* **One instruction serves many lines.** A fusion is a single event: its time is split by the cost of what is fused, and
  what is so split is marked as inferred.

The result is a table of `Share`s: who, how long, how often. Every summary is a sum over it, so that each of them adds
up to the same total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...dispatch import site
from ..hlo.module import Instruction, Module, read_module
from ..programs import Place, place_of, programs
from .events import Events
from .launches import Launch
from .origins import Origin, origin_of, parts_of
from .record import Recording

_LAUNCHES_APART = 1 << 16  # numbers of one program's runs lie closer together


@dataclass(frozen=True)
class Executable:
    """A program that ran.

    Attributes:
        name: as the user knows it.
        kind: as `ProgramInfo.kind`; "other" for what JAX runs on its own.
        part: "", "saving" or "backward", as `ProgramInfo.part`.
        module: its HLO; None where it is gone.
        number: of its `ProgramInfo`, where it has one.
    """

    name: str
    kind: str
    part: str
    module: Module | None
    number: int | None


class Share(NamedTuple):
    """Time on the device that belongs to one origin.

    Attributes:
        executable: index into `Attribution.executables`.
        instruction: name in its HLO.
        own: nanoseconds.
        count: how often the instruction ran; of a part of a fusion, its weight of it.
        inferred: whether it is an estimate: a part of something that ran as one.
    """

    executable: int
    instruction: str
    origin: Origin
    own: float
    count: float
    flops: float
    bytes: float
    inferred: bool


@dataclass(frozen=True, eq=False)
class Attribution:
    """Whose the device's time is.

    Attributes:
        total: nanoseconds of all events of the device, without what they hold within.
        executable_of: for each event of the device, its executable.
    """

    total: float
    shares: tuple[Share, ...]
    executables: tuple[Executable, ...]
    executable_of: np.ndarray


def attribute(recording: Recording) -> Attribution:
    """Whose the device's time of a recording is."""
    events = recording.events.chosen(recording.events.on_device)
    found = _Executables(recording.launches)
    executable_of, launch_of = found.assign(events)
    sites = [_launch_origin(launch) for launch in recording.launches]
    key = np.stack([executable_of, events.name, launch_of], 1)
    groups, inverse, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    own = np.bincount(inverse.reshape(-1), weights=events.own, minlength=len(groups))
    shares: list[Share] = []
    merged: dict[tuple[int, str, Origin | None], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (executable, name, launch), time, count in zip(groups.tolist(), own, counts, strict=True):
        origin = sites[launch] if launch >= 0 else None
        entry = merged[executable, events.names[name], origin]
        entry[0] += float(time)
        entry[1] += int(count)
    for (executable, name, origin), (time, count) in merged.items():
        shares += _shares(found.executables[executable], executable, name, origin, time, count)
    return Attribution(
        float(events.own.sum()), tuple(shares), tuple(found.executables), executable_of
    )


def _shares(
    of: Executable, number: int, name: str, origin: Origin | None, own: float, count: float
) -> Iterable[Share]:
    """An instruction's time, split where it is of several origins."""
    instruction = _instruction(of, name)
    if instruction is None or of.module is None:
        yield Share(number, name, origin or Origin(operator=of.name), own, count, 0, 0, False)
        return
    parts = parts_of(of.module, instruction)
    if origin is not None or of.kind == "eager":
        flops, size = (sum(values) for values in zip(*((p.flops, p.bytes) for p in parts), strict=True))
        known = origin or Origin(operator=of.name)
        yield Share(number, name, known, own, count, flops * count, size * count, False)
        return
    split: dict[Origin, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for part in parts:
        entry = split[origin_of(of.module, part.instruction, of.part == "backward")]
        for i, value in enumerate((part.weight, part.flops, part.bytes)):
            entry[i] += value
    whole = sum(weight for weight, *_ in split.values())
    for one, (weight, flops, size) in split.items():
        fraction = weight / whole if whole else 1 / len(split)
        yield Share(
            number, name, one, own * fraction, count * fraction, flops * count, size * count, len(split) > 1
        )


def _instruction(of: Executable, name: str) -> Instruction | None:
    try:
        return None if of.module is None else of.module.named(name)
    except LookupError:
        return None


def _launch_origin(launch: Launch) -> Origin:
    place = None
    if launch.site is not None:
        code, offset = launch.site
        place = place_of((code.co_filename, site.line_of(code, offset)))
    return Origin(place, launch.scope, launch.program.name, launch.backward)


class _Executables:
    """The programs that ran, found among those that are alive."""

    def __init__(self, launches: tuple[Launch, ...]):
        self.executables: list[Executable] = []
        self._launches: dict[Any, list[int]] = defaultdict(list)  # of each executable, in order
        for i, launch in enumerate(launches):
            self._launches[launch.program.executable.runtime_executable()].append(i)
        self._eager = {launches[own[0]].program.name: e for e, own in self._launches.items()}
        self._infos: dict[Any, Any] = {}
        for info in programs():
            running = info.running()
            if running is not None:
                self._infos[running] = info

    def assign(self, events: Events) -> tuple[np.ndarray, np.ndarray]:
        """For each event the index of its executable, and of the launch of an eager one (or -1)."""
        executable_of = np.zeros(len(events), np.int64)
        launch_of = np.full(len(events), -1, np.int64)
        alive: dict[tuple[int, str], list[Any]] = defaultdict(list)
        wanted = {p.name for p in events.programs}
        for one in _live():
            module = one.hlo_modules()[0]
            if module.name in wanted:
                alive[_module_id(module), module.name].append(one)
        for number, program in enumerate(events.programs):
            rows = np.flatnonzero(events.program == number)
            candidates = alive.get((program.id, program.name), [])
            for group in _by_executable(events, rows, len(candidates)):
                chosen = self._choose(candidates, {events.names[n] for n in set(events.name[group].tolist())})
                if chosen is not None and len(candidates) > 1:
                    candidates = [c for c in candidates if c is not chosen]
                executable_of[group] = self._add(chosen, program.name)
                if chosen in self._launches:
                    launch_of[group] = self._in_order(events, group, self._launches[chosen])
        return executable_of, launch_of

    def _choose(self, candidates: list[Any], instructions: set[str]) -> Any:
        """The program that has these instructions; of several, the one that was launched first."""
        fitting = [c for c in candidates if _has(c, instructions)] if len(candidates) > 1 else candidates
        fitting.sort(key=lambda c: self._launches[c][0] if c in self._launches else 1 << 60)
        return fitting[0] if fitting else None

    def _in_order(self, events: Events, group: np.ndarray, launches: list[int]) -> np.ndarray:
        """The launch of each event: runs in the order of their numbers are launches in order."""
        _, place = np.unique(_unwrapped(events.run[group]), return_inverse=True)
        if place.max() + 1 != len(launches):
            # Some runs left no event. All launches of one line are as good as each other.
            return np.full(len(group), launches[0] if self._one_site(launches) else -1)
        return np.array(launches)[place.reshape(-1)]
