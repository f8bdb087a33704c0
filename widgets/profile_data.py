"""A profile as JSON for the live form, with the events as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jaxtorch.insight.profile.categories import CATEGORIES, categories
from jaxtorch.insight.profile.finding import extent, finding
from jaxtorch.insight.profile.lanes import Lane
from jaxtorch.insight.profile.roofline import Peak
from jaxtorch.insight.profile.sources import text_of
from jaxtorch.insight.profile.summary import Time
from jaxtorch.insight.programs import Location

from .page import Page
from .units import duration, size, written

if TYPE_CHECKING:
    from jaxtorch.insight.profile.join import Share
    from jaxtorch.insight.profile.summary import ModuleTime, Profile


@dataclass(frozen=True, kw_only=True)
class LineTime(Time):
    """A line. `inclusive` is its self time plus the time of everything it called."""

    id: int
    file: str
    cell: int | None
    line: int
    source: str
    inclusive: float


@dataclass(frozen=True, kw_only=True)
class OperatorTime(Time):
    """An operator."""

    id: int
    name: str


@dataclass(frozen=True, kw_only=True)
class InstructionTime(Time):
    """An instruction. `number` is the number of its program, for `%jax hlo`. `lines` are ids of lines."""

    id: int
    program: str
    number: int | None
    name: str
    opcode: str
    lines: list[int]


@dataclass(frozen=True, kw_only=True)
class Branch(Time):
    """A module. `self_time` is its time without its submodules."""

    name: str
    self_time: float
    children: list[Branch]


@dataclass(frozen=True)
class EventColumns:
    """Events as columns of equal length, sorted by lane and start.

    `name` and `lane` are indices, and `line` is the id of a line. `operator`, `module` and `instruction` are row
    numbers: of the operator, module and instruction that take most of the event's time. Modules are numbered in the
    order of the tree, without the root. -1 means none. `category` is an index into `ProfileData.categories`.
    """

    start: list[int]
    duration: list[int]
    lane: list[int]
    name: list[int]
    depth: list[int]
    line: list[int]
    operator: list[int]
    module: list[int]
    instruction: list[int]
    category: list[int]


@dataclass(frozen=True)
class Phase:
    """A part of the wall time."""

    name: str
    time: float
    note: str
    colour: str


@dataclass(frozen=True)
class Category:
    """A category of events, with its colour in every drawing (`COLOURS`)."""

    name: str
    colour: str


@dataclass(frozen=True)
class Phases:
    """The parts of the wall time, for the device or for the calling thread."""

    who: str
    parts: list[Phase]


@dataclass(frozen=True)
class ProfileData:
    """A profile. Times are nanoseconds. They are means over the runs, except in `events`, which has all runs.

    Attributes:
        heading: the title and the totals.
        device: the time of all work on the device. Shares are relative to it.
        runs: (start, end) of each run.
        omitted: how many events, the shortest, are not in `events`.
    """

    heading: Page
    device: float
    phases: list[Phases]
    peak: Peak | None
    lines: list[LineTime]
    unattributed: Time
    tree: Branch
    operators: list[OperatorTime]
    instructions: list[InstructionTime]
    events: EventColumns
    names: list[str]
    lanes: list[Lane]
    runs: list[tuple[int, int]]
    categories: list[Category]
    omitted: int


# Each category has a fixed colour that works on light and dark pages; lost time is grey.
COLOURS = {
    "forward": "#3b7dd8",
    "backward": "#e08a1e",
    "busy": "#3b7dd8",
    "idle": "#9aa3ad",
    "compiling": "#a45fc4",
    "launching": "#2f9e5b",
    "transfers": "#d0569b",
    "waiting": "#9aa3ad",
    "Python": "#c9a50a",
}
EVENTS = 20_000  # that a live form gets


def heading(profile: Profile, title: str, first: str = "") -> Page:
    """The title, the totals and the finding of a profile. `first` is the file of the profiled cell."""
    runs = f"{profile.repeat} runs, each" if profile.repeat > 1 else "one run,"
    facts = [
        f"{runs} {duration(profile.wall)}",
        f"{duration(profile.device)} of work on the device",
    ]
    if profile.attributed < 0.9995:
        facts.append(f"{written(profile.attributed, 'share')} of it attributed to lines")
    memory = profile.recording.memory
    if memory is not None:
        sizes = size(memory.before), size(memory.peak), size(memory.after)
        facts.append("memory: {} before, {} at most, {} after".format(*sizes))
    sampled = extent(profile)
    return Page(
        title or "Profile",
        tuple(facts),
        warnings=(sampled,) if sampled else (),
        finding=finding(profile, first),
    )


def _phase(name: str, time: float, note: str) -> Phase:
    return Phase(name, time, note, COLOURS[name])


def phases(profile: Profile) -> list[Phases]:
    """The wall time broken down, for the device and for the calling thread."""
    host = profile.host
    return [
        Phases(
            "device",
            [
                _phase("busy", profile.busy, "some lane of the device works"),
                _phase("idle", profile.idle, "none does"),
            ],
        ),
        Phases(
            "this thread",
            [
                _phase("compiling", host.compile, "tracing, lowering, XLA"),
                _phase("launching", host.dispatch, "handing programs to XLA"),
                _phase("transfers", host.transfer, "between host and device"),
                _phase("waiting", host.waiting, "for the device"),
                _phase("Python", host.python, "everything else: the code, torch, dispatch"),
            ],
        ),
    ]


def packed(profile: Profile, title: str, first: str = "") -> ProfileData:
    """The whole profile. `first` is the file of the profiled cell."""
    recording = profile.recording
    kept = _longest(profile)
    locations = {row.location: i for i, row in enumerate(profile.lines)}
    return ProfileData(
        heading=heading(profile, title, first),
        device=profile.device,
        phases=phases(profile),
        peak=profile.peak,
        lines=[
            LineTime(
                id=i,
                file=row.location.file,
                cell=row.location.cell,
                line=row.location.line,
                source=text_of(row.location),
                inclusive=row.inclusive.total,
                **vars(row.time),
            )
            for i, row in enumerate([*profile.lines, *profile.calling])
            if row.location is not None
        ],
        unattributed=profile.unattributed,
        tree=_branch(profile.tree),
        operators=[
            OperatorTime(id=i, name=row.name, **vars(row.time))
            for i, row in enumerate(profile.operators)
        ],
        instructions=[
            InstructionTime(
                id=i,
                program=row.program,
                number=row.number,
                name=row.instruction,
                opcode=row.opcode,
                lines=[locations[location] for location in row.locations],
                **vars(row.time),
            )
            for i, row in enumerate(profile.instructions)
        ],
        events=_events(profile, locations, kept),
        names=list(recording.events.names),
        lanes=list(recording.events.lanes),
        runs=[(start, end) for start, end in recording.runs],
        categories=[Category(name, COLOURS[name]) for name in CATEGORIES],
        omitted=len(recording.events) - len(kept),
    )


def _longest(profile: Profile) -> np.ndarray:
    """The indices of the longest events, in their order."""
    duration = profile.recording.events.duration
    return np.sort(np.argsort(-duration, kind="stable")[:EVENTS])


def _events(
    profile: Profile, locations: Mapping[Location | None, int], kept: np.ndarray
) -> EventColumns:
    events, attribution = profile.recording.events, profile.attribution
    line = np.full(len(events), -1)
    # The last entry is for index -1: no place.
    numbers = np.array([*(locations[p] for p in attribution.locations), -1])
    line[events.on_device] = numbers[attribution.location_of]
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
        "category": categories(profile.recording, attribution),
    }
    return EventColumns(**{name: column[kept].tolist() for name, column in columns.items()})


def _owners(profile: Profile) -> dict[tuple[int, str], tuple[int, int, int]]:
    """(executable, instruction) -> the rows of the operator, module and instruction that take most of its time."""
    attribution = profile.attribution
    operators = {row.name: i for i, row in enumerate(profile.operators)}
    instructions = {
        (row.program, row.number, row.instruction): i for i, row in enumerate(profile.instructions)
    }
    modules = {path: i for i, path in enumerate(_paths(profile.tree))}
    largest: dict[tuple[int, str], Share] = {}
    for share in attribution.shares:
        key = share.executable, share.instruction
        if key not in largest or share.duration > largest[key].duration:
            largest[key] = share
    owners = {}
    for (number, name), share in largest.items():
        executable = attribution.executables[number]
        program = executable.info.id if executable.info is not None else None
        owners[number, name] = (
            operators.get(share.origin.operator, -1),
            modules.get(share.origin.scope, -1),
            instructions.get((executable.title, program, name), -1),
        )
    return owners


def _paths(node: ModuleTime, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The module paths of a tree without its root, in the order of `ProfileData.tree`."""
    for child in node.children:
        path = (*above, child.name)
        yield path
        yield from _paths(child, path)


def _branch(node: ModuleTime) -> Branch:
    children = [_branch(child) for child in node.children]
    return Branch(
        name=node.name, self_time=node.self_time.total, children=children, **vars(node.time)
    )
