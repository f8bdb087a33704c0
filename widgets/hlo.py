"""A program beside its source code: lines with their costs, the three listings, fusions, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jaxtorch.insight.hlo.graph import Graph, folded, neighbourhood
from jaxtorch.insight.hlo.listing import STAGES
from jaxtorch.insight.hlo.reading import Reading, Source
from jaxtorch.insight.hlo.scopes import scope_of
from jaxtorch.insight.programs import Place, ProgramInfo, program, programs

from .hlo_page import Page
from .hlo_words import (
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
from .tables import shortened
from .units import amount
from .view import View

_MOST = 60  # lines of a listing in a terminal
_WIDTH = 100
_WIDTHS = (6, 7, 3, 6, 9)  # of `COLUMNS`
_ROWS = 200  # of a table


class HloView(View):
    """Shows one program of the session.

    `data()`; L is an index into `lines`, a name is that of an instruction:

    | key | what |
    | --- | --- |
    | program | {id, name, kind, part, title, signature: [...]} |
    | others | [[id, title], ...]: programs to compare with: of the same function, then the latest others |
    | sources | [{file, title, cell, first, lines: [...]}, ...]: the user's code |
    | lines | [[index into sources, line number], ...]: the lines that became instructions |
    | table | {line: [L or -1, ...], instructions: [...], flops: [...], transcendentals: [...], bytes: [...]} |
    | total | [flops, transcendentals, bytes] |
    | kinds | [[opcode, count, fused, flops, transcendentals, bytes], ...], most expensive first |
    | fusions | [[name, kind, "2 add, 1 multiply", [L, ...], flops, bytes], ...], most expensive first |
    | memory | {arguments, outputs, alias, temporary, code} in bytes, or null |
    | buffers | [[index, kind, size, [[name, offset, size], ...]], ...], the largest first |
    | stages | the available stages, in order |
    | stage, line, grep | what to show first: a stage; an L, or -1; a word, or "" |

    `answer(ask, arguments)`:

    | ask | arguments | answer |
    | --- | --- | --- |
    | stage | stage | {stage, title, text, groups, links, sources, lines} |
    | neighbourhood | instruction (a name), hops | {nodes, edges: [[from, to], ...], cut} |
    | fold | depth, or null | the same, with a module path as each node |
    | instruction | name | {name, opcode, shape, path, backward, inferred, lines, stack, cost, runs, text} |
    | diff | stage, other (a program's id) | as `DiffView.data()` |
    | download | stage | {name, text}: a file |

    `groups` are lists of Ls, and `links` has an index into `groups`, or -1, for each line of `text`. `sources` and
    `lines` replace the earlier ones, which they may extend. A node is [id, label, detail, distance, flops, bytes, L or
    -1]. `path` is a list of names, `lines` a list of Ls, `stack` a list of [file, line, function], the innermost first,
    `cost` is [flops, transcendentals, bytes]. `inferred` says that XLA recorded no origin: path and lines are guesses.
    """

    kind = "hlo"

    def __init__(
        self, reading: Reading, stage: str = "hlo", line: int | None = None, grep: str = ""
    ):
        self.reading, self.stage, self.line, self.grep = reading, stage, line, grep
        self._sources: list[Source] = []
        self._lines: dict[tuple[str, int], int] = {}  # a line of user code -> its L

    def html(self) -> str:
        return Page(self.reading, self.stage, self.line, self.grep).html()

    # -- text -------------------------------------------------------------------------------------------------

    def text(self) -> str:
        parts = [*heading(self.reading), "", *self._code()]
        if not self.grep and self.line is None:
            parts += self._fusions()
        return "\n".join([*parts, "", *self._text()])

    def _code(self) -> list[str]:
        rows = {(r.place.file, r.place.line): r for r in self.reading.lines if r.place is not None}
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
        rest = next((r for r in self.reading.lines if r.place is None), None)
        if rest is not None:
            out.append(f"{'      (no line of yours)':{width}} {_aligned(cells(rest, total))}")
        return out

    def _fusions(self) -> list[str]:
        out = ["", "The dearest fusions:"] if self.reading.fusions else []
        for f in self.reading.fusions[:8]:
            lines = ",".join(str(p.line) for p in f.places[:5]) or "none"
            line = f"  {f.instruction.name}: lines {lines}; {amount(f.cost.flops)} flops; {parts_of(f.parts)}"
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
            where = ",".join(str(p.line) for p in listing.places[i][:3])
            line = f"{where:>9} │ {shown_line(listing, i)}"
            out.append(line if why else shortened(line, _WIDTH))
        return out

    # -- live -------------------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        reading = self.reading
        info = reading.program
        self._grow()
        table = reading.lines
        chosen = next((n for (_, l), n in self._lines.items() if l == self.line), -1)
        memory = info.memory()
        return {
            "program": {
                "id": info.id,
                "name": info.name,
                "kind": info.kind,
                "part": info.part,
                "title": program_title(info),
                "signature": list(info.signature),
            },
            "others": [[p.id, program_title(p)] for p in _comparable(info)],
            **self._places(),
            "table": {
                "line": [self._l(row.place) for row in table],
                "instructions": [row.instructions for row in table],
                "flops": [row.cost.flops for row in table],
                "transcendentals": [row.cost.transcendentals for row in table],
                "bytes": [row.cost.bytes for row in table],
            },
            "total": list(reading.costs.total),
            "kinds": [[k.opcode, k.number, k.fused, *k.cost] for k in reading.kinds],
            "fusions": [
                [
                    f.instruction.name,
                    f.kind,
                    parts_of(f.parts),
                    [self._l(p) for p in f.places],
                    f.cost.flops,
                    f.cost.bytes,
                ]
                for f in reading.fusions[:_ROWS]
            ],
            "memory": None if memory is None else asdict(memory),
            "buffers": [
                [
                    a.index,
                    a.kind,
                    a.size,
                    [[h.instruction, h.offset, h.size] for h in a.held[:_ROWS]],
                ]
                for a in reading.buffers[:_ROWS]
            ],
            "stages": list(STAGES),
            "stage": self.stage,
            "line": chosen,
            "grep": self.grep,
        }

    def answer(self, ask: str, arguments: Mapping[str, Any]) -> object:
        if ask == "stage":
            return self._stage_data(arguments["stage"])
        if ask == "neighbourhood":
            instruction = self.reading.module.named(arguments["instruction"])
            hops = int(arguments.get("hops") or 3)
            return self._graph(neighbourhood(self.reading.costs, instruction, hops), True)
        if ask == "fold":
            return self._graph(folded(self.reading.costs, arguments.get("depth")), False)
        if ask == "instruction":
            return self._instruction(arguments["name"])
        if ask == "diff":
            from .diff import DiffView

            other = Reading(program(arguments["other"]))
            return DiffView(other, self.reading, arguments.get("stage", "hlo")).data()
        if ask == "download":
            stage = arguments["stage"]
            return {
                "name": file_name(self.reading.program, stage),
                "text": full_text(self.reading, stage),
            }
        return super().answer(ask, arguments)

    def _grow(self) -> None:
        """Assign an L to every new line and an index to every new file; existing ones keep theirs."""
        texts = {source.file: source for source in self.reading.texts()}
        self._sources = [texts.pop(source.file) for source in self._sources] + list(texts.values())
        known = [row.place for row in self.reading.lines if row.place is not None]
        for listing in self.reading.read():
            known += listing.all_places
        for place in known:
            self._lines.setdefault((place.file, place.line), len(self._lines))

    def _places(self) -> dict[str, Any]:
        files = {source.file: i for i, source in enumerate(self._sources)}
        return {
            "sources": [
                {
                    "file": s.file,
                    "title": source_title(s),
                    "cell": s.cell,
                    "first": s.first,
                    "lines": list(s.lines),
                }
                for s in self._sources
            ],
            "lines": [[files.get(file, 0), line] for file, line in self._lines],
        }

    def _l(self, place: Place | None) -> int:
        return -1 if place is None else self._lines.get((place.file, place.line), -1)

    def _stage_data(self, stage: str) -> dict[str, Any]:
        listing = self.reading.listing(stage)
        self._grow()
        groups: dict[tuple[Place, ...], int] = {(): -1}
        links = []
        for places in listing.places:
            links.append(groups.setdefault(places, len(groups) - 1))
        del groups[()]
        return {
            "stage": stage,
            "title": TITLES[stage],
            "text": listing.text,
            "groups": [[self._l(p) for p in places] for places in groups],
            "links": links,
            **self._places(),
        }

    def _graph(self, graph: Graph, of_instructions: bool) -> dict[str, Any]:
        module, sources = self.reading.module, self.reading.sources
        nodes = []
        for n in graph.nodes:
            line = self._l(sources.of(module.instructions[n.id])) if of_instructions else -1
            nodes.append([n.id, n.label, n.detail, n.distance, n.cost.flops, n.cost.bytes, line])
        return {"nodes": nodes, "edges": [list(edge) for edge in graph.edges], "cut": graph.cut}

    def _instruction(self, name: str) -> dict[str, Any]:
        reading = self.reading
        own = reading.module.named(name)
        scope = scope_of(own.op_name)
        cost = reading.costs.of(own)
        listing = reading.listing("hlo")
        return {
            "name": own.name,
            "opcode": own.opcode,
            "shape": own.shape.text,
            "path": list(scope.path),
            "backward": scope.backward,
            "inferred": own.id in reading.module.inferred,
            "lines": [self._l(p) for p in reading.sources.spanned(own)],
            "stack": [list(frame) for frame in reading.module.stack(own.frame)],
            "cost": list(cost),
            "runs": reading.costs.runs.get(own.computation, 0),
            "text": listing.lines[listing.instructions.index(own.id)].strip(),
        }


def _aligned(figures: Sequence[str]) -> str:
    return " ".join(figure.rjust(width) for figure, width in zip(figures, _WIDTHS, strict=True))


def _comparable(info: ProgramInfo) -> list[ProgramInfo]:
    """The programs to compare with: those of the same function first, then the latest."""
    others = [p for p in programs() if p.id != info.id and p.kind != "eager" and p.alive]
    return sorted(others, key=lambda p: (p.source != info.source, -p.id))[:20]
