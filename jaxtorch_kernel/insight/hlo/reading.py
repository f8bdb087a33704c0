"""Reads one program of the session: its listings, the cost of each source line, its fusions and its memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...programs.site import lines_of
from ..programs import Location, ProgramInfo
from .buffers import Allocation, read_buffers
from .costs import NOTHING, Cost, Costs
from .inferred import infer_origins
from .listing import STAGES, Listing, list_hlo, list_jaxpr, list_stablehlo
from .module import Instruction, Module, read_module
from .source import Sources


class LineCost(NamedTuple):
    """The instructions and the cost of one source line.

    Attributes:
        location: the line; None for instructions without a line of user code.
        instructions: how many instructions do work for the line.
        cost: the total cost of the line in one run of the program.
    """

    location: Location | None
    instructions: int
    cost: Cost


class OpcodeCost(NamedTuple):
    """All instructions with the same opcode.

    Attributes:
        number: how many instructions there are.
        fused: how many of them are inside fusions.
    """

    opcode: str
    number: int
    fused: int
    cost: Cost


class Fusion(NamedTuple):
    """Instructions that XLA fused into one kernel.

    Attributes:
        kind: XLA's fusion kind.
        parts: the number of instructions inside, by opcode.
        locations: the source lines that the fusion does work for.
    """

    instruction: Instruction
    kind: str
    parts: dict[str, int]
    locations: tuple[Location, ...]
    cost: Cost


@dataclass(frozen=True)
class Source:
    """A part of a user file that a program comes from.

    Attributes:
        first: the line number of the first entry of `lines`.
    """

    file: str
    cell: int | None
    first: int
    lines: tuple[str, ...]


class Reading:
    """What can be read from a program. Everything is computed on request and cached.

    Raises:
        LookupError: the program is gone.
    """

    def __init__(self, program: ProgramInfo):
        self.program = program
        proto = program.hlo_proto()
        if proto is None:
            raise LookupError(
                f"{program.name} (#{program.id}) is gone: it can no longer run. Run its code again, or keep its text "
                "next time with jaxtorch.insight.programs.keep"
            )
        self._proto = proto
        self._listings: dict[str, Listing] = {}

    @cached_property
    def module(self) -> Module:
        """The program's HLO, with inferred origins (`inferred.py`)."""
        return infer_origins(read_module(self._proto).with_input_names(), self.program.stablehlo)

    @cached_property
    def sources(self) -> Sources:
        """The source lines of the instructions."""
        return Sources(self.module)

    @cached_property
    def costs(self) -> Costs:
        """The costs of the instructions."""
        return Costs(self.module)

    @cached_property
    def hlo_text(self) -> str:
        """The full optimized HLO as XLA prints it."""
        return self.program.hlo_text(self._proto)

    def listing(self, stage: str) -> Listing:
        """The listing of one stage, with source links; empty if the program is gone.

        Raises:
            ValueError: there is no such stage.
        """
        if stage not in STAGES:
            raise ValueError(f"the stage must be one of {', '.join(STAGES)}, not {stage!r}")
        if stage not in self._listings:
            self._listings[stage] = self._read(stage)
        return self._listings[stage]

    def requested_listings(self) -> list[Listing]:
        """The listings that were requested so far."""
        return list(self._listings.values())

    def _read(self, stage: str) -> Listing:
        if stage == "hlo":
            return list_hlo(self.module, self.sources, self.hlo_text)
        if stage == "stablehlo":
            return list_stablehlo(self.program.stablehlo() or "")
        trace = self.program.trace()
        if trace is not None:
            return list_jaxpr(trace)
        lines = tuple((self.program.jaxpr() or "").splitlines())
        return Listing("jaxpr", lines, ((),) * len(lines))

    # -- tables -----------------------------------------------------------------------------------------------

    @cached_property
    def lines(self) -> list[LineCost]:
        """The cost of each source line. Work without a line comes last. The sum is the cost of the program."""
        costs: dict[tuple[str, int] | None, Cost] = {}
        counts: Counter[tuple[str, int] | None] = Counter()
        for instruction, times in self.costs.executed():
            outer = self.sources.of(instruction)
            line_keys = set()
            for inner, cost in self.costs.spread(instruction):
                location = self.sources.of(inner) or outer
                key = None if location is None else (location.file, location.line)
                costs[key] = costs.get(key, NOTHING).plus(cost.times(times))
                if cost != NOTHING:
                    line_keys.add(key)
            counts.update(line_keys)
        rows = [
            LineCost(
                location,
                counts[location.file, location.line],
                costs.get((location.file, location.line), NOTHING),
            )
            for location in self.sources.locations
        ]
        if costs.get(None, NOTHING) != NOTHING:
            rows.append(LineCost(None, counts[None], costs[None]))
        return rows

    @cached_property
    def opcodes(self) -> list[OpcodeCost]:
        """The opcodes, most expensive first. The instructions inside a fusion count instead of the fusion."""
        counts: Counter[str] = Counter()
        fused: Counter[str] = Counter()
        costs: dict[str, Cost] = {}
        for instruction, times in self.costs.executed():
            for inner, cost in self.costs.spread(instruction):
                counts[inner.opcode] += 1
                fused[inner.opcode] += inner is not instruction
                costs[inner.opcode] = costs.get(inner.opcode, NOTHING).plus(cost.times(times))
        rows = [OpcodeCost(opcode, n, fused[opcode], costs[opcode]) for opcode, n in counts.items()]
        return sorted(
            rows, key=lambda r: (-r.cost.flops, -r.cost.transcendentals, -r.cost.bytes, r.opcode)
        )

    @cached_property
    def fusions(self) -> list[Fusion]:
        """The fusions, most expensive first."""
        fusions = []
        for instruction, times in self.costs.executed():
            if instruction.opcode != "fusion":
                continue
            parts = Counter(
                i.opcode
                for i in self.module.inside(instruction)
                if i.opcode not in ("parameter", "constant")
            )
            kind = instruction.fields.get(11, b"").decode()
            locations = self.sources.spanned(instruction)
            cost = self.costs.of(instruction).times(times)
            fusions.append(Fusion(instruction, kind, dict(parts), locations, cost))
        return sorted(fusions, key=lambda f: (-f.cost.flops, -f.cost.bytes))

    @cached_property
    def buffers(self) -> list[Allocation]:
        """The allocations of the program, the largest first; empty if XLA does not report them."""
        return read_buffers(self.program.buffer_assignment() or b"", self.module)

    def texts(self) -> list[Source]:
        """The user code that the program comes from: whole cells, and the relevant parts of files.

        The lines are those of the optimized HLO and of the listings read so far. A line whose instructions XLA removed
        appears only after the jaxpr has been read.
        """
        locations_by_file: dict[str, list[Location]] = {}
        for location in self._all_locations():
            locations_by_file.setdefault(location.file, []).append(location)
        sources = []
        for file, locations in locations_by_file.items():
            lines = lines_of(file)
            first, last = 1, len(lines)
            if locations[0].cell is None:
                first = max(1, min(p.line for p in locations) - 3)
                last = min(last, max(p.line for p in locations) + 3)
            if not lines:  # a file that cannot be read: show the line numbers only
                last = max(p.line for p in locations)
                lines = [""] * last
            sources.append(Source(file, locations[0].cell, first, tuple(lines[first - 1 : last])))
        return sorted(sources, key=lambda s: (s.cell is None, s.cell or 0, s.file))

    def _all_locations(self) -> list[Location]:
        """The lines of all listings read so far. The HLO alone misses a line if XLA removed all its instructions."""
        locations = {(p.file, p.line): p for p in self.sources.locations}
        for listing in self._listings.values():
            locations |= {(p.file, p.line): p for p in listing.all_locations}
        if not locations and (location := self.program.location) is not None:
            locations[location.file, location.line] = location
        return list(locations.values())
