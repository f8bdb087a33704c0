"""Attributes device events to lines, modules, operators and directions.

An event names its program and its instruction, and the program's HLO has the origin of the instruction. Two cases need
more:

* **One eager program serves many lines.** Its HLO has only the line that first compiled it. The recorded launches have
  the right lines. The HLO of a captured program has the right lines; its launches add the lines that called it.
* **One instruction serves many lines.** A fusion is a single event. Its time is split in proportion to the cost of the
  fused instructions, and the parts are marked as inferred.

The result is a table of `Share`s, each with an origin, a time and a count. Every summary is a sum over this table, so
all summaries have the same total.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...programs.site import line_of
from ..hlo.source import select_location
from ..programs import Location, location_of
from .executables import ProfiledProgram, assign
from .launches import Launch, Sites
from .origins import Origin, OriginPart, Origins
from .record import Recording


class Share(NamedTuple):
    """Time on the device that belongs to one origin.

    Attributes:
        executable: index into `Attribution.executables`.
        instruction: its name in the HLO.
        duration: nanoseconds.
        times: how often the instruction ran; an estimate where the profiler paused.
        inferred: whether it is an estimate, such as a share of a fusion.
    """

    executable: int
    instruction: str
    opcode: str
    origin: Origin
    duration: float
    times: float
    flops: float
    bytes: float
    inferred: bool


@dataclass(frozen=True, eq=False)
class Attribution:
    """The device time of a recording by origin.

    Attributes:
        total: nanoseconds of all device events, without double counting of nested ones.
        executable_of: for each device event, its executable.
        locations: the lines.
        location_of: for each device event, the line that most of its time belongs to, or -1.
        backward: for each device event, whether most of its time is of the backward pass.
    """

    total: float
    shares: tuple[Share, ...]
    executables: tuple[ProfiledProgram, ...]
    executable_of: np.ndarray
    locations: tuple[Location, ...]
    location_of: np.ndarray
    backward: np.ndarray


def attribute(recording: Recording) -> Attribution:
    """Attribute the device time of a recording."""
    events = recording.events.select(recording.events.on_device)
    executables, executable_of, launch_of = assign(events, recording.launches, recording.windows)
    location_cache = _LocationCache()
    origins = [_origin(launch, location_cache) for launch in recording.launches]
    # Many events have the same program, instruction and launching line. Handle each such combination once.
    number_of = {origin: i for i, origin in enumerate(dict.fromkeys(origins))}
    numbers = np.array([number_of[o] for o in origins] + [-1])  # the last for "no launch"
    key = np.stack([executable_of, events.name, numbers[launch_of]], 1)
    rows, inverse = _distinct(key)
    weight = weights(recording, events.start)
    counts = np.bincount(inverse, weights=weight, minlength=len(rows))
    durations = np.bincount(inverse, weights=events.self_time * weight, minlength=len(rows))
    distinct = list(number_of)
    splitter = [_Splitter(e) for e in executables]
    shares: list[Share] = []
    lines: dict[Location, int] = {}
    line_of_row = np.full(len(rows), -1)
    backward = np.zeros(len(rows), bool)
    for i, (executable, name, origin_number) in enumerate(rows.tolist()):
        origin = distinct[origin_number] if origin_number >= 0 else None
        row_shares = list(
            splitter[executable].shares(
                executable, events.names[name], origin, float(durations[i]), float(counts[i])
            )
        )
        shares += row_shares
        largest = max(row_shares, key=lambda s: s.duration).origin
        location, backward[i] = largest.location, largest.backward
        if location is not None:
            line_of_row[i] = lines.setdefault(location, len(lines))
    return Attribution(
        float(durations.sum()),
        tuple(shares),
        tuple(executables),
        executable_of,
        tuple(lines),
        line_of_row[inverse],
        backward[inverse],
    )


def weights(recording: Recording, times: np.ndarray) -> np.ndarray:
    """For each time, the weight of the span that contains it, or of the last one before it; 1 without such a span."""
    if not recording.spans:
        return np.ones(len(times))
    starts = np.array([span.start for span in recording.spans])
    weight = np.array([span.weight for span in recording.spans])
    return weight[np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)]


def _distinct(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of a table of small numbers, and for each row of the table its index among them."""
    if not len(table):
        return table, np.zeros(0, np.int64)
    low = table.min(0)
    size = table.max(0) - low + 1
    code = np.ravel_multi_index(tuple((table - low).T), tuple(size))
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return table[first], inverse.reshape(-1)


class _LocationCache(dict[tuple[int, int], Location | None]):
    """Caches the line of each site, because launches share sites. Code objects are slow to hash, so keys have ids."""

    def of(self, sites: Sites) -> list[Location]:
        """The lines of some sites."""
        locations = []
        for code, offset in sites:
            key = id(code), offset
            if key not in self:
                self[key] = location_of((code.co_filename, line_of(code, offset)))
            if (location := self[key]) is not None:
                locations.append(location)
        return locations


def _origin(launch: Launch, location_cache: _LocationCache) -> Origin:
    site_locations = location_cache.of(launch.sites)
    stack = tuple(dict.fromkeys([*site_locations, *location_cache.of(launch.waiting)]))
    return Origin(
        select_location(site_locations), launch.scope, launch.record.name, launch.backward, stack
    )


class _Splitter:
    """Splits the time of one program's instructions into shares."""

    def __init__(self, executable: ProfiledProgram):
        self.executable = executable
        module = executable.module
        self.origins = Origins(module, executable.backward) if module is not None else None

    def shares(
        self, number: int, name: str, launched: Origin | None, duration: float, count: float
    ) -> Iterator[Share]:
        """Yield the shares of an instruction's time: one if its origin is that of the launch, else one per origin."""
        try:
            instruction = self.origins.module.named(name) if self.origins is not None else None
        except LookupError:
            instruction = None
        unknown = Origin(operator=self.executable.name)
        if instruction is None or self.origins is None:
            yield Share(number, name, "", launched or unknown, duration, count, 0, 0, False)
            return
        if self.executable.kind == "eager":  # its HLO has only the line that first compiled it
            parts = [OriginPart(launched or unknown, 1.0, self.origins.cost(instruction), False)]
        else:
            parts = [_called(part, launched) for part in self.origins.of(instruction)]
        for part in parts:
            flops = part.cost.flops + part.cost.transcendentals
            yield Share(
                number,
                name,
                instruction.opcode,
                part.origin,
                duration * part.fraction,
                count,
                flops * count,
                part.cost.bytes * count,
                part.inferred,
            )


def _called(part: OriginPart, launched: Origin | None) -> OriginPart:
    """A part of captured code; its stack includes the lines that called the code in this launch."""
    if launched is None:
        return part
    stack = tuple(dict.fromkeys((*part.origin.stack, *launched.stack)))
    return part._replace(origin=part.origin._replace(stack=stack))
