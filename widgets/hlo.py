"""A program beside the code that it comes from: the lines with their costs, the three texts, what was fused, memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import Any

from jaxtorch.insight.hlo.costs import Cost
from jaxtorch.insight.hlo.graph import Graph, folded, neighbourhood
from jaxtorch.insight.hlo.listing import STAGES, Listing, short
from jaxtorch.insight.hlo.reading import LineCost, Reading, Source
from jaxtorch.insight.hlo.scopes import scope_of
from jaxtorch.insight.programs import Place, ProgramInfo, program, programs

from .view import View

TITLES = {"jaxpr": "jaxpr", "stablehlo": "StableHLO (before XLA)", "hlo": "HLO (after XLA)"}
_TERMINAL = 60  # lines of a text in a terminal
_STATIC = 400  # ... on a page without scripts
_LARGE = 5000  # lines of HLO from which on a page has only the text that was asked for: the others take seconds to make
_WIDTH = 100
_ROWS = 200  # of a table
_views = itertools.count(1)


class HloView(View):
    """A program of the session, read.

    `data()`; an L is a place in `lines`, a name is an instruction's:

    | key | what |
    | --- | --- |
    | program | {id, name, kind, part, title, signature: [...]} |
    | others | [[id, title], ...]: programs of the same function, and the latest others, to compare with |
    | sources | [{file, title, cell, first, lines: [...]}, ...]: the user's code |
    | lines | [[place in sources, line number], ...]: the lines that became instructions |
    | table | {line: [L or -1, ...], instructions: [...], flops: [...], transcendentals: [...], bytes: [...]} |
    | total | [flops, transcendentals, bytes] |
    | kinds | [[opcode, count, fused, flops, transcendentals, bytes], ...], the dearest first |
    | fusions | [[name, kind, "2 add, 1 multiply", [L, ...], flops, bytes], ...], the dearest first |
    | memory | {arguments, outputs, alias, temporary, code} in bytes, or null |
    | buffers | [[index, kind, size, [[name, offset, size], ...]], ...], the largest first |
    | stages | the stages that can be asked for, in order |
    | stage, line, grep | what to show first: a stage; an L, or -1; a word, or "" |

    `answer(ask, arguments)`:

    | ask | arguments | answer |
    | --- | --- | --- |
    | stage | stage | {stage, title, text, groups, links, sources, lines} |
    | neighbourhood | instruction (a name), hops | {nodes, edges: [[from, to], ...], cut} |
    | fold | depth, or null | the same, a node being a module path |
    | instruction | name | {name, opcode, shape, path, backward, lines, stack, cost, runs, text} |
    | diff | stage, other (a program's id) | as `DiffView.data()` |
    | download | stage | {name, text}: a file |

    `groups` are lists of Ls, and `links` has for each line of `text` a place in `groups`, or -1. `sources` and `lines`
    take the place of what was there before: they may have grown at their ends. A node is [id, label, detail,
    distance, flops, bytes, L or -1]. A `path` is a list of names, `lines` one of Ls, `stack` one of
    [file, line, function], the innermost first, and a `cost` [flops, transcendentals, bytes].
    """

    kind = "hlo"

    def __init__(
        self, reading: Reading, stage: str = "hlo", line: int | None = None, grep: str = ""
    ):
        self.reading, self.stage, self.grep = reading, stage, grep
        self.line = line
        self._number = next(_views)
        self._files: dict[str, int] = {}  # for anchors, which must not hold names
        self._sources: list[Source] = []
        self._lines: dict[tuple[str, int], int] = {}  # a line of the user's -> its L

    # -- text -------------------------------------------------------------------------------------------------

    def text(self) -> str:
        reading = self.reading
        parts = [*_heading(reading), "", *self._table_text()]
        if not self.grep and self.line is None:
            parts += ["", *_fusions_text(reading)] if reading.fusions else []
        return "\n".join([*parts, "", *self._listing_text()])

    def _table_text(self) -> list[str]:
        rows = {(r.place.file, r.place.line): r for r in self.reading.lines if r.place is not None}
        total = self.reading.costs.total
        out = []
        for source in self.reading.texts():
            out.append(
                f"{_source_title(source):{_WIDTH - 42}} {'instr.':>6} {'flops':>8} {'%':>4} {'bytes':>9}"
            )
            for number, code in enumerate(source.lines, source.first):
                row = rows.get((source.file, number))
                shown = f"{number:4}  {code.expandtabs(4)}"
                cut = shown if len(shown) <= _WIDTH - 42 else shown[: _WIDTH - 43] + "…"
                out.append(f"{cut:{_WIDTH - 42}} {_row_text(row, total)}".rstrip())
        rest = next((r for r in self.reading.lines if r.place is None), None)
        if rest is not None:
            out.append(f"{'      (no line of yours)':{_WIDTH - 42}} {_row_text(rest, total)}")
        return out

    def _listing_text(self) -> list[str]:
        listing = self.reading.listing(self.stage)
        shown, why = self._chosen(listing)
        title = TITLES[self.stage]
        if not listing.lines:
            return [f"{title}: gone."]
        head = f"{title}, {len(listing.lines)} lines"
        if why:
            head += f"; {len(shown)} {why}"
        elif len(shown) > _TERMINAL:
            shown = _entry(listing, shown)[:_TERMINAL]
            head += f", {len(shown)} of them here (--grep WORD, --line N, --save FILE)"
        out = [head]
        for i in shown:
            line = short(listing.lines[i]) if self.stage == "hlo" else listing.lines[i]
            where = ",".join(str(p.line) for p in listing.places[i][:3])
            line = f"{where:>9} │ {line}"
            out.append(line if why or len(line) <= _WIDTH else line[: _WIDTH - 1] + "…")
        return out

    def _chosen(self, listing: Listing) -> tuple[list[int], str]:
        """The lines of a text to show, and why not all of them."""
        chosen: list[int] | None = None
        why = ""
        if self.line is not None:
            chosen = [
                i
                for i, places in enumerate(listing.places)
                if any(p.line == self.line for p in places)
            ]
            why = f"come from line {self.line}"
        if self.grep:
            found = listing.grep(self.grep)
            chosen = found if chosen is None else [i for i in found if i in set(chosen)]
            why += f"{' and ' if why else ''}contain {self.grep!r}"
        return (list(range(len(listing.lines))) if chosen is None else chosen), why

    # -- HTML -------------------------------------------------------------------------------------------------

    def html(self) -> str:
        reading = self.reading
        heading = "<br>".join(escape(line) for line in _heading(reading))
        stages = "".join(map(self._stage_html, self._stages()))
        source = f'<div style="{_PANE}">{self._source_html()}</div>'
        return (
            f'<div style="font-size:13px"><div style="margin:4px 0">{heading}</div>'
            f'<div style="display:flex;flex-wrap:wrap;gap:12px">{source}'
            f'<div style="{_PANE}">{stages}</div></div>{_tables_html(reading)}</div>'
        )

    def _source_html(self) -> str:
        rows = {(r.place.file, r.place.line): r for r in self.reading.lines if r.place is not None}
        total = self.reading.costs.total
        first = {stage: self._first_lines(stage) for stage in self._stages()}
        out = []
        for source in self.reading.texts():
            out.append(
                f'<tr><th colspan="2" scope="col" style="{_HEAD}">{escape(_source_title(source))}</th>'
                + "".join(f'<th scope="col" style="{_HEAD}">{name}</th>' for name in _COLUMNS)
                + "</tr>"
            )
            for number, code in enumerate(source.lines, source.first):
                key = source.file, number
                row = rows.get(key)
                links = " ".join(
                    f'<a href="#{self._anchor(stage, first[stage][key])}" title="{TITLES[stage]}">{letter}</a>'
                    for stage, letter in zip(STAGES, ("j", "s", "h"), strict=True)
                    if key in first.get(stage, ())
                )
                cells = "".join(f'<td style="{_NUMBER}">{cell}</td>' for cell in _cells(row, total))
                out.append(
                    f'<tr id="{self._source_anchor(key)}"><td style="{_NUMBER};opacity:.6">{number}</td>'
                    f'<td style="{_CODE}">{escape(code) or "&nbsp;"}</td>{cells}<td style="{_NUMBER}">{links}</td></tr>'
                )
        rest = next((r for r in self.reading.lines if r.place is None), None)
        if rest is not None:
            cells = "".join(f'<td style="{_NUMBER}">{cell}</td>' for cell in _cells(rest, total))
            out.append(f"<tr><td></td><td><i>no line of yours</i></td>{cells}<td></td></tr>")
        return f'<table style="border-collapse:collapse;width:100%">{"".join(out)}</table>'

    def _stages(self) -> list[str]:
        """The texts on the page, the one that was asked for first."""
        large = len(self.reading.module.instructions) > _LARGE
        return [self.stage, *(s for s in reversed(STAGES) if s != self.stage and not large)]

    def _first_lines(self, stage: str) -> dict[tuple[str, int], int]:
        """The first line shown of a text that comes from each line of the user's."""
        listing = self.reading.listing(stage)
        found: dict[tuple[str, int], int] = {}
        for i in _static(listing, self._chosen(listing)[0]):
            for place in listing.places[i]:
                found.setdefault((place.file, place.line), i)
        return found

    def _stage_html(self, stage: str) -> str:
        listing = self.reading.listing(stage)
        if not listing.lines:
            return f"<details><summary>{TITLES[stage]}: gone</summary></details>"
        chosen, why = self._chosen(listing)
        shown = _static(listing, chosen)
        note = f"{len(listing.lines)} lines" + (f"; {len(chosen)} {why}" if why else "")
        if len(shown) < len(chosen):
            note += f"; {len(shown)} of them here"
        out = []
        for i in shown:
            places = listing.places[i]
            links = ",".join(
                f'<a href="#{self._source_anchor((p.file, p.line))}" title="{escape(str(p))}">{p.line}</a>'
                for p in places[:4]
            )
            line = short(listing.lines[i]) if stage == "hlo" else listing.lines[i]
            scope = escape(_scope_title(self.reading, listing, i))
            title = f' title="{scope}"' if scope else ""
            out.append(
                f'<tr id="{self._anchor(stage, i)}"><td style="{_NUMBER}">{links}</td>'
                f'<td style="{_CODE}"{title}>{escape(line) or "&nbsp;"}</td></tr>'
            )
        opened = " open" if stage == self.stage else ""
        return (
            f"<details{opened}><summary><b>{TITLES[stage]}</b>, {escape(note)}</summary>"
            f'<table style="border-collapse:collapse">{"".join(out)}</table></details>'
        )

    def _anchor(self, stage: str, line: int) -> str:
        return f"jaxtorch-{self._number}-{stage}-{line}"

    def _source_anchor(self, key: tuple[str, int]) -> str:
        file = self._files.setdefault(key[0], len(self._files))
        return f"jaxtorch-{self._number}-source-{file}-{key[1]}"

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
                    _parts(f.parts),
                    [self._l(p) for p in f.places],
                    f.cost.flops,
                    f.cost.bytes,
                ]
                for f in reading.fusions[:_ROWS]
            ],
            "memory": None
            if memory is None
            else {
                "arguments": memory.arguments,
                "outputs": memory.outputs,
                "alias": memory.alias,
                "temporary": memory.temporary,
                "code": memory.code,
            },
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

    def answer(self, ask: str, arguments: dict[str, Any]) -> Any:
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
        """Give every line that is known now its L, and every file its place; those that had one keep it."""
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
                    "title": _source_title(s),
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
            "lines": [self._l(p) for p in reading.sources.spanned(own)],
            "stack": [list(frame) for frame in reading.module.stack(own.frame)],
            "cost": list(cost),
            "runs": reading.costs.runs.get(own.computation, 0),
            "text": listing.lines[listing.instructions.index(own.id)].strip(),
        }


# -- what texts and pages share -----------------------------------------------------------------------------------

_PANE = (
    "flex:1 1 420px;min-width:0;max-height:480px;overflow:auto;border:1px solid #8884;padding:4px"
)
_HEAD = "text-align:left;padding:2px 6px;border-bottom:1px solid #8884;font-weight:600;white-space:nowrap"
_NUMBER = "text-align:right;padding:0 6px;vertical-align:top;white-space:nowrap"
_CODE = "text-align:left;padding:0 6px;white-space:pre;font-family:monospace;vertical-align:top"
_COLUMNS = ("instr.", "flops", "%", "bytes", "")


def program_title(info: ProgramInfo) -> str:
    """A program in a few words."""
    part = f", {info.part}" if info.part else ""
    place = f", {info.place}" if info.place is not None else ""
    return f"#{info.id} {info.name} ({info.kind}{part}{place})"


def file_name(info: ProgramInfo, stage: str) -> str:
    """What a file with a program's text is called."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in info.name)
    return f"{safe}.{info.id}.{'mlir' if stage == 'stablehlo' else stage + '.txt'}"


def full_text(reading: Reading, stage: str) -> str:
    """A text as JAX or XLA prints it, locations included."""
    if stage == "hlo":
        return reading.hlo_text
    if stage == "stablehlo":
        return reading.program.stablehlo() or ""
    return reading.listing(stage).text


def count(number: float) -> str:
    """A number of operations or bytes in at most six signs.

    Example:
        >>> from jaxtorch.widgets.hlo import count
        >>> count(512), count(123456), count(2.5e9)
        ('512', '123k', '2.50G')
    """
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5 or unit == "T":
            break
        number /= 1000
    return (
        f"{number:.0f}"
        if not unit
        else f"{number:.3g}{unit}"
        if number >= 100
        else f"{number:#.3g}{unit}"
    )


def _comparable(info: ProgramInfo) -> list[ProgramInfo]:
    """What a person may want to compare a program with: of the same function first, the latest first."""
    others = [p for p in programs() if p.id != info.id and p.kind != "eager" and p.alive]
    return sorted(others, key=lambda p: (p.source != info.source, -p.id))[:20]


def _heading(reading: Reading) -> list[str]:
    info, total = reading.program, reading.costs.total
    same = [
        p for p in programs() if p.source == info.source and p.id != info.id and p.kind != "eager"
    ]
    lines = [f"Program {program_title(info)}"]
    if same:
        lines[0] += "; also " + ", ".join(f"#{p.id} {p.part or 'forward'}" for p in same[-4:])
    fused = sum(sum(f.parts.values()) for f in reading.fusions)
    work = f"{count(total.flops)} flops, {count(total.transcendentals)} transcendental, {count(total.bytes)}B moved"
    lines.append(f"{work}; {len(reading.fusions)} fusions of {fused} instructions")
    memory = info.memory()
    if memory is not None:
        lines.append(
            f"Memory: {count(memory.arguments)}B arguments, {count(memory.outputs)}B results"
            f" ({count(memory.alias)}B in place of arguments), {count(memory.temporary)}B temporary"
        )
    unknown = reading.costs.unknown
    if unknown:
        lines.append(
            "Not counted: "
            + ", ".join(f"{i.name} ({_why_unknown(i.opcode)})" for i in unknown[:4])
            + (f" and {len(unknown) - 4} more" if len(unknown) > 4 else "")
        )
    return lines


def _why_unknown(opcode: str) -> str:
    return "a loop of unknown length, counted once" if opcode == "while" else "a library's work"


def _source_title(source: Source) -> str:
    return source.file if source.cell is None else f"Cell [{source.cell}]"


def _cells(row: LineCost | None, total: Cost) -> tuple[str, ...]:
    """Instructions, flops, share of the flops, bytes."""
    if row is None:
        return "", "", "", ""
    share = f"{100 * row.cost.flops / total.flops:.0f}" if total.flops else ""
    return str(row.instructions), count(row.cost.flops), share, count(row.cost.bytes)


def _row_text(row: LineCost | None, total: Cost) -> str:
    own, flops, share, moved = _cells(row, total)
    return f"{own:>6} {flops:>8} {share:>4} {moved:>9}"


def _parts(parts: dict[str, int]) -> str:
    """
    Example:
        >>> _parts({"add": 2, "broadcast": 3, "dot": 1})
        '2 add, 1 dot'
    """
    quiet = ("broadcast", "bitcast", "reshape", "tuple", "get-tuple-element", "copy")
    told = {name: n for name, n in parts.items() if name not in quiet} or parts
    return ", ".join(f"{n} {name}" for name, n in sorted(told.items(), key=lambda p: (-p[1], p[0])))


def _fusions_text(reading: Reading) -> list[str]:
    out = ["The dearest fusions:"]
    for f in reading.fusions[:8]:
        lines = ",".join(str(p.line) for p in f.places[:5])
        line = f"  {f.instruction.name}: lines {lines or 'none'}; {count(f.cost.flops)} flops; {_parts(f.parts)}"
        out.append(line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…")
    return out


def _entry(listing: Listing, shown: list[int]) -> list[int]:
    """The lines with what runs first in front: the other computations are read through it."""
    if listing.stage != "hlo":
        return shown
    start = next((i for i in shown if listing.lines[i].startswith("ENTRY ")), 0)
    return [*range(start, len(listing.lines)), *range(start)]


def _static(listing: Listing, chosen: list[int]) -> list[int]:
    return _entry(listing, chosen)[:_STATIC] if len(chosen) > _STATIC else chosen


def _scope_title(reading: Reading, listing: Listing, line: int) -> str:
    number = listing.instructions[line] if listing.instructions else None
    return "" if number is None else reading.module.instructions[number].op_name


def _tables_html(reading: Reading) -> str:
    kinds = [
        (k.opcode, str(k.number), str(k.fused), *map(count, k.cost)) for k in reading.kinds[:_ROWS]
    ]
    fusions = [
        (
            f.instruction.name,
            f.kind,
            _parts(f.parts),
            ", ".join(str(p.line) for p in f.places),
            count(f.cost.flops),
            count(f.cost.bytes),
        )
        for f in reading.fusions[:_ROWS]
    ]
    buffers = [
        (str(a.index), a.kind, count(a.size), ", ".join(h.instruction for h in a.held[:8]))
        for a in reading.buffers[:50]
    ]
    return "".join(
        (
            _table(
                "Instructions by kind",
                ("opcode", "count", "fused", "flops", "transc.", "bytes"),
                kinds,
            ),
            _table("What was fused", ("fusion", "kind", "of", "lines", "flops", "bytes"), fusions),
            _table("Memory by buffer", ("buffer", "kind", "bytes", "holds"), buffers),
        )
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col" style="{_HEAD}">{escape(c)}</th>' for c in columns)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="padding:1px 6px;text-align:left">{escape(c)}</td>' for c in row)
        + "</tr>"
        for row in rows
    )
    return (
        f"<details><summary>{escape(title)} ({len(rows)})</summary>"
        f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table></details>'
    )
