"""The tables of a profile: time by line, module, operator and instruction, and the remaining wall time.

All times are nanoseconds of one run: the mean over all runs. Every table of device time adds up to `Profile.device`.
The table of lines leaves out `unattributed`, the time without a line.
"""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...programs import compiling
from ..programs import Location
from .hosts import HostTime, host_time
from .join import Attribution, Share, attribute
from .record import Recording, record
from .roofline import Peak, Position, peak_of, positions


@dataclass(frozen=True)
class Time:
    """Time on the device, and the work done in this time.

    Attributes:
        total: nanoseconds.
        backward: the part of `total` in the backward pass.
        inferred: the part of `total` that is an estimate, such as a share of a fusion.
        count: number of instructions run.
        flops: floating-point operations, from the HLO.
        bytes: bytes read and written, from the HLO.
    """

    total: float = 0.0
    backward: float = 0.0
    inferred: float = 0.0
    count: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def forward(self) -> float:
        """The part of the total outside the backward pass."""
        return self.total - self.backward


@dataclass(frozen=True)
class ProfileRow:
    """One row of a table. The table of lines has a place for each row, the others have a name.

    Attributes:
        inclusive: for a line, its self time plus the time of everything it called.
    """

    name: str
    time: Time
    location: Location | None = None
    inclusive: Time = Time()


@dataclass(frozen=True)
class InstructionRow:
    """One instruction of a program.

    Attributes:
        program: the program's name.
        number: the `ProgramInfo.id`, for `%jax hlo`; None for programs that JAX runs on its own.
        locations: its lines, most time first.
    """

    program: str
    number: int | None
    instruction: str
    opcode: str
    locations: tuple[Location, ...]
    time: Time


@dataclass
class ModuleTime:
    """A module in the tree of module paths. `time` includes its submodules, `self_time` does not."""

    name: str
    time: Time = field(default_factory=Time)
    self_time: Time = field(default_factory=Time)
    children: list[ModuleTime] = field(default_factory=list)


class Profile:
    """The analysis of a recording. Created by `profile`.

    Attributes:
        recording: the events.
        attribution: the origins of the events.
        wall: nanoseconds from the start of a run until the device is idle.
        device: nanoseconds of work on the device, summed over its lanes.
        busy: nanoseconds in which some lane of the device was busy.
        host: the time of the calling thread by activity.
        peak: the device's roofline, if known.
    """

    def __init__(self, recording: Recording):
        self.recording = recording
        self.attribution: Attribution = attribute(recording)
        self.repeat = max(1, recording.count)
        self.wall = recording.total / self.repeat
        self.device = self.attribution.total / self.repeat
        self.host: HostTime = host_time(recording)
        self.peak: Peak | None = peak_of()

    @property
    def busy(self) -> float:
        """Nanoseconds in which some lane of the device was busy."""
        return self.host.device_busy

    @property
    def idle(self) -> float:
        """Nanoseconds in which no lane was busy."""
        return max(0.0, self.wall - self.busy)

    @cached_property
    def lines(self) -> list[ProfileRow]:
        """Time by line, in source order: cells by number, then files."""
        times = self._by(lambda s: s.origin.location)
        return self._lines(
            {location: time for location, time in times.items() if location is not None}
        )

    @cached_property
    def calling(self) -> list[ProfileRow]:
        """Lines without self time that called lines with device time, in the same order."""
        with_time = {row.location for row in self.lines}
        without_time = (
            p for p in self._inclusive if p not in with_time and not _is_magic_expansion(p)
        )
        return self._lines({location: Time() for location in without_time})

    @cached_property
    def _inclusive(self) -> dict[Location, Time]:
        """The inclusive time of each line: the time of everything that ran while the line was on the stack."""
        groups: dict[Location, list[Share]] = defaultdict(list)
        for share in self.attribution.shares:
            for location in share.origin.stack:
                groups[location].append(share)
        return {location: self._time(shares) for location, shares in groups.items()}

    @cached_property
    def roofline(self) -> list[Position]:
        """The positions of the lines under the roofline; empty if the device's peak is unknown."""
        return [] if self.peak is None else positions(self.lines, self.peak)

    def _lines(self, times: dict[Location, Time]) -> list[ProfileRow]:
        rows = [
            ProfileRow(str(p), time, p, self._inclusive.get(p, time)) for p, time in times.items()
        ]

        def order(row: ProfileRow) -> Any:
            location = row.location
            assert location is not None
            return location.cell is None, location.cell or 0, location.file, location.line

        return sorted(rows, key=order)

    @cached_property
    def unattributed(self) -> Time:
        """Time for which no line was found."""
        return self._by(lambda s: s.origin.location).get(None, Time())

    @property
    def attributed(self) -> float:
        """The share of the device time that belongs to a line, between 0 and 1."""
        return 1 - self.unattributed.total / self.device if self.device else 1.0

    @cached_property
    def operators(self) -> list[ProfileRow]:
        """Time by operator, most first."""
        return _sorted(self._by(lambda s: s.origin.operator))

    @cached_property
    def programs(self) -> list[ProfileRow]:
        """Time by program, most first."""
        return _sorted(self._by(lambda s: self.attribution.executables[s.executable].title))

    @cached_property
    def instructions(self) -> list[InstructionRow]:
        """Time by instruction of the HLO, most first."""
        groups: dict[tuple[int, str], list[Share]] = defaultdict(list)
        for share in self.attribution.shares:
            groups[share.executable, share.instruction].append(share)
        rows = []
        for (number, name), shares in groups.items():
            executable = self.attribution.executables[number]
            ordered = sorted(shares, key=lambda s: -s.duration)
            rows.append(
                InstructionRow(
                    executable.title,
                    executable.info.id if executable.info is not None else None,
                    name,
                    shares[0].opcode,
                    tuple(dict.fromkeys(s.origin.location for s in ordered if s.origin.location)),
                    self._time(shares),
                )
            )
        return sorted(rows, key=lambda r: -r.time.total)

    @cached_property
    def tree(self) -> ModuleTime:
        """Time by module path. The root is everything, forward and backward together."""
        return self.tree_of(self.attribution.shares)

    def tree_of(self, shares: Iterable[Share]) -> ModuleTime:
        """The tree of some shares."""
        groups: dict[tuple[str, ...], list[Share]] = defaultdict(list)
        for share in shares:
            groups[share.origin.scope].append(share)
        everything = [s for group in groups.values() for s in group]
        root = ModuleTime("all", self._time(everything))
        self._grow(root, groups, 0)
        return root

    def _grow(
        self, node: ModuleTime, groups: dict[tuple[str, ...], list[Share]], depth: int
    ) -> None:
        children: dict[str, dict[tuple[str, ...], list[Share]]] = defaultdict(dict)
        for path, shares in groups.items():
            if len(path) == depth:
                node.self_time = self._time(shares)
            else:
                children[path[depth]][path] = shares
        for name, below in children.items():
            child = ModuleTime(name, self._time(s for group in below.values() for s in group))
            self._grow(child, below, depth + 1)
            node.children.append(child)
        node.children.sort(key=lambda n: -n.time.total)

    def _by(self, key: Callable[[Share], Any]) -> dict[Any, Time]:
        groups: dict[Any, list[Share]] = defaultdict(list)
        for share in self.attribution.shares:
            groups[key(share)].append(share)
        return {name: self._time(shares) for name, shares in groups.items()}

    def _time(self, shares: Iterable[Share]) -> Time:
        total = backward = inferred = count = flops = size = 0.0
        for share in shares:
            total += share.duration
            backward += share.duration if share.origin.backward else 0.0
            inferred += share.duration if share.inferred else 0.0
            count += share.times
            flops += share.flops
            size += share.bytes
        each = (value / self.repeat for value in (total, backward, inferred, count, flops, size))
        return Time(*each)


def profile(
    function: Callable[[], Any], *, repeat: int = 1, warmup: int = 0, memory: bool = False
) -> Profile:
    """Run a function under JAX's profiler and report where its time went.

    Args:
        function: the code to profile, called without arguments.
        repeat: number of profiled runs; times are means.
        warmup: number of unprofiled runs before them, so that compilation is not measured.
        memory: record the peak memory held by tensors.

    Raises:
        ProfileError: another profile is running.
        ValueError: `repeat` is less than 1, or `warmup` is negative.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.profile import profile
        >>> x = torch.ones(64, 64, device="jax")
        >>> result = profile(lambda: (x @ x).sum(), warmup=1)
        >>> sorted(row.name for row in result.operators)
        ['matmul.default', 'sum.default']
    """
    recording = record(function, repeat=repeat, warmup=warmup, memory=memory)
    with compiling.phase("the lines of its programs", "profile"):
        return Profile(recording)


def _sorted(times: dict[Any, Time]) -> list[ProfileRow]:
    return sorted((ProfileRow(str(n), t) for n, t in times.items()), key=lambda r: -r.time.total)


def _is_magic_expansion(location: Location) -> bool:
    """Whether a line is IPython's expansion of a `%%magic`; the cell itself is shown instead."""
    return linecache.getline(location.file, location.line).startswith(
        "get_ipython().run_cell_magic("
    )
