"""A program beside its source code: lines with their costs, the three listings, fusions, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxtorch.insight.hlo.graph import Graph, folded, neighbourhood
from jaxtorch.insight.hlo.listing import STAGES
from jaxtorch.insight.hlo.reading import Reading, Source
from jaxtorch.insight.hlo.scopes import scope_of
from jaxtorch.insight.programs import Location, ProgramInfo, program, programs

from .diff import DiffView
from .hlo_data import (
    CostRow,
    GraphAnswer,
    GraphEdge,
    GraphNode,
    HloData,
    InstructionAnswer,
    Other,
    SourceLine,
    SourceLines,
    SourceText,
    StageAnswer,
    tables,
)
from .hlo_format import (
    COLUMNS,
    TITLES,
    cells,
    chosen_lines,
    file_name,
    full_text,
    heading,
    parts_of,
    program_title,
    shown_line,
    source_title,
)
from .hlo_page import Page
from .page import Fact, Facts, File
from .page_text import page_text, shortened
from .protocol import Data, Json, plain
from .units import amount, size
from .view import View

_MOST = 60  # lines of a listing in a terminal
_WIDTH = 100
_WIDTHS = (6, 7, 3, 7, 9)  # of `COLUMNS`


class HloView(View):
    """Shows one program of the session.

    `data()` is an `HloData` (`hlo_data.py`, which also defines L).

    `answer(ask, arguments)`:

    | ask | arguments | answer |
    | --- | --- | --- |
    | stage | stage | `StageAnswer` |
    | neighbourhood | instruction (a name), hops | `GraphAnswer` |
    | fold | depth, or null; repeats | `GraphAnswer`, with a module path as each node |
    | instruction | name | `InstructionAnswer` |
    | diff | stage, other (a program's id) | `DiffData` |
    | download | stage | `File` |
    """

    kind = "hlo"

    def __init__(
        self, reading: Reading, stage: str = "hlo", line: int | None = None, grep: str = ""
    ):
        self.reading, self.stage, self.line, self.grep = reading, stage, line, grep
        self._sources: list[Source] = []
        self._lines: dict[tuple[str, int], int] = {}  # a line of user code -> its L

    def html(self) -> str:
        self._grow()
        return Page(self.reading, self.stage, self.line, self.grep, self._costs()).html()

    # -- text -------------------------------------------------------------------------------------------------

    def text(self) -> str:
        parts = [*page_text(heading(self.reading)).split("\n"), "", *self._code()]
        if not self.grep and self.line is None:
            parts += self._fusions()
        return "\n".join([*parts, "", *self._text()])

    def _code(self) -> list[str]:
        rows = {
            (r.location.file, r.location.line): r
            for r in self.reading.lines
            if r.location is not None
        }
        total = self.reading.costs.total
        width = _WIDTH - sum(_WIDTHS) - len(_WIDTHS)
        out = []
        for source in self.reading.texts():
            title = shortened(source_title(source), width)
            out.append(f"{title:{width}} {_aligned(COLUMNS)}")
            for number, code in enumerate(source.lines, source.first):
                figures = cells(rows.get((source.file, number)), total)
                shown = shortened(f"{number:4}  {code.expandtabs(4)}", width)
                out.append(f"{shown:{width}} {_aligned(figures)}".rstrip())
        unattributed = next((r for r in self.reading.lines if r.location is None), None)
        if unattributed is not None:
            out.append(
                f"{'      (no line of your code)':{width}} {_aligned(cells(unattributed, total))}"
            )
        return out

    def _fusions(self) -> list[str]:
        out = ["", "The most expensive fusions:"] if self.reading.fusions else []
        for f in self.reading.fusions[:8]:
            lines = ",".join(str(p.line) for p in f.locations[:5]) or "none"
            line = f"  {f.instruction.name}: lines {lines}; {amount(f.cost.flops)} FLOPs; {parts_of(f.parts)}"
            out.append(shortened(line, _WIDTH))
        return out

    def _text(self) -> list[str]:
        listing = self.reading.listing(self.stage)
        if not listing.lines:
            return [f"{TITLES[self.stage]}: no longer available."]
        shown, why = chosen_lines(listing, self.line, self.grep)
        head = f"{TITLES[self.stage]}, {len(listing.lines)} lines"
        if why:
            head += f"; {len(shown)} {why}"
        elif len(shown) > _MOST:
            shown = shown[:_MOST]
            head += f", {_MOST} of them here (--grep WORD, --line N, --save FILE)"
        out = [head]
        for i in shown:
            numbers = ",".join(str(p.line) for p in listing.locations[i][:3])
            line = f"{numbers:>9} │ {shown_line(listing, i)}"
            out.append(line if why else shortened(line, _WIDTH))
        return out

    # -- live -------------------------------------------------------------------------------------------------

    def data(self) -> Data:
        self._grow()
        source_lines = self._source_lines()
        info = self.reading.program
        data = HloData(
            sources=source_lines.sources,
            lines=source_lines.lines,
            page=replace(heading(self.reading), sections=tables(self.reading, self._costs())),
            name=info.name,
            others=[Other(p.id, program_title(p)) for p in _comparable(info)],
            stages=list(STAGES),
            stage=self.stage,
            line=next((n for (_, line), n in self._lines.items() if line == self.line), -1),
            grep=self.grep,
        )
        return dict(plain(data))

    def answer(self, ask: str, arguments: Mapping[str, Json]) -> object:
        if ask == "stage":
            return self._stage_data(arguments["stage"])
        if ask == "neighbourhood":
            instruction = self.reading.module.named(arguments["instruction"])
            hops = int(arguments.get("hops") or 3)
            return self._graph(neighbourhood(self.reading.costs, instruction, hops), True)
        if ask == "fold":
            depth, repeats = arguments.get("depth"), bool(arguments.get("repeats"))
            return self._graph(folded(self.reading.costs, depth, repeats=repeats), False)
        if ask == "instruction":
            return self._instruction(arguments["name"])
        if ask == "diff":
            other = Reading(program(arguments["other"]))
            return DiffView(other, self.reading, arguments.get("stage", "hlo")).payload()
        if ask == "download":
            stage = arguments["stage"]
            return File(file_name(self.reading.program, stage), full_text(self.reading, stage))
        return super().answer(ask, arguments)

    def _grow(self) -> None:
        """Assign an L to every new line, and an index to every new file. The old ones do not change."""
        texts = {source.file: source for source in self.reading.texts()}
        self._sources = [texts.pop(source.file) for source in self._sources] + list(texts.values())
        locations = [row.location for row in self.reading.lines if row.location is not None]
        for listing in self.reading.requested_listings():
            locations += listing.all_locations
        for location in locations:
            self._lines.setdefault((location.file, location.line), len(self._lines))

    def _source_lines(self) -> SourceLines:
        files = {source.file: i for i, source in enumerate(self._sources)}
        return SourceLines(
            [
                SourceText(s.file, source_title(s), s.cell, s.first, list(s.lines))
                for s in self._sources
            ],
            [SourceLine(files.get(file, 0), line) for file, line in self._lines],
        )

    def _l(self, location: Location | None) -> int:
        return -1 if location is None else self._lines.get((location.file, location.line), -1)

    def _costs(self) -> list[CostRow]:
        total = self.reading.costs.total.flops
        return [
            CostRow(
                id=self._l(row.location),
                line=self._line_text(row.location),
                instructions=row.instructions,
                flops=row.cost.flops,
                share=row.cost.flops / total if total else None,
                transcendentals=row.cost.transcendentals,
                bytes=row.cost.bytes,
            )
            for row in self.reading.lines
        ]

    def _line_text(self, location: Location | None) -> str:
        """The number of a line of user code, followed by its text."""
        for source in self._sources:
            if location is not None and source.file == location.file:
                i = location.line - source.first
                code = source.lines[i].strip() if 0 <= i < len(source.lines) else ""
                return f"{location.line}  {code}"
        return "(no line of your code)"

    def _stage_data(self, stage: str) -> StageAnswer:
        listing = self.reading.listing(stage)
        self._grow()
        groups: dict[tuple[Location, ...], int] = {(): -1}
        links = []
        for locations in listing.locations:
            links.append(groups.setdefault(locations, len(groups) - 1))
        del groups[()]
        source_lines = self._source_lines()
        guesses = self.reading.module.inferred
        return StageAnswer(
            sources=source_lines.sources,
            lines=source_lines.lines,
            stage=stage,
            title=TITLES[stage],
            text=listing.text,
            groups=[[self._l(p) for p in locations] for locations in groups],
            links=links,
            inferred=[i for i, number in enumerate(listing.instructions) if number in guesses],
        )

    def _graph(self, graph: Graph, of_instructions: bool) -> GraphAnswer:
        module, sources = self.reading.module, self.reading.sources
        nodes = []
        for n in graph.nodes:
            line = self._l(sources.of(module.instructions[n.id])) if of_instructions else -1
            cost = n.cost
            nodes.append(
                GraphNode(
                    n.id, n.label, n.detail, n.distance, cost.flops, cost.bytes, line, n.count
                )
            )
        return GraphAnswer(nodes, [GraphEdge(*edge) for edge in graph.edges], graph.cut)

    def _instruction(self, name: str) -> InstructionAnswer:
        reading = self.reading
        instruction = reading.module.named(name)
        scope = scope_of(instruction.op_name)
        cost = reading.costs.of(instruction)
        listing = reading.listing("hlo")
        locations = reading.sources.spanned(instruction)
        runs = reading.costs.runs.get(instruction.computation, 0)
        inferred = instruction.id in reading.module.inferred
        text = listing.lines[listing.instructions.index(instruction.id)].strip()
        stack = tuple(
            f"{f.file}:{f.line} {f.function}" for f in reading.module.stack(instruction.frame)
        )
        facts = (
            Fact("Instruction", (text,), code=True),
            Fact(
                "Scope",
                (("backward of " if scope.backward else "") + "/".join(scope.path) or "none",),
            ),
            Fact(
                "Lines", tuple(map(self._line_text, locations)) or ("none in your code",), code=True
            ),
            Fact("Origin", (INFERRED if inferred else "recorded by XLA",)),
            Fact(
                "Cost",
                (
                    f"{amount(cost.flops)} FLOPs, {amount(cost.transcendentals)} transcendentals, {size(cost.bytes)}",
                ),
            ),
            Fact("Runs", (f"{runs:,}",)),
            Fact("Stack", stack or ("not recorded",), code=True),
        )
        return InstructionAnswer(instruction.name, [self._l(p) for p in locations], Facts(facts))


INFERRED = "inferred: XLA recorded no source location, so scope and lines are guesses"


def _aligned(figures: Sequence[str]) -> str:
    return " ".join(figure.rjust(width) for figure, width in zip(figures, _WIDTHS, strict=True))


def _comparable(info: ProgramInfo) -> list[ProgramInfo]:
    """The programs to compare with: first those of the same function, then captured ones, each the latest first."""
    others = [p for p in programs() if p.id != info.id and p.rank and p.kind != "eager" and p.alive]
    return sorted(others, key=lambda p: (p.source != info.source, -p.rank, -p.id))[:20]
