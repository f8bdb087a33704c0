"""The payloads and rows that the live form of a program receives. `js/src/generated.ts` has their types.

In comments here and in the TypeScript, an L is an index into `HloData.lines`. It identifies a line of user code; -1
means no line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from jaxtorch.insight.hlo.reading import Reading

from .hlo_format import parts_of
from .memory import BufferRow, buffer_rows, memory_facts
from .page import Column, Facts, Page, Row, Section, Table, columns
from .units import written

_ROWS = 200  # of a table


@dataclass(frozen=True)
class CostRow(Row):
    """The cost of one source line. The row's id is the L of the line."""

    line: Annotated[str, Column("line", "code")]
    instructions: Annotated[int, Column("instructions", "count")]
    flops: Annotated[float, Column("FLOPs", "amount")]
    share: Annotated[float | None, Column("share", "share", "of the FLOPs", wide=True)]
    transcendentals: Annotated[
        float, Column("transcendentals", "amount", "calls of exp, sin, ...", wide=True)
    ]
    bytes: Annotated[float, Column("bytes", "bytes")]


@dataclass(frozen=True)
class OpcodeRow(Row):
    """All instructions with the same opcode."""

    opcode: Annotated[str, Column("opcode", "code")]
    number: Annotated[int, Column("number", "count")]
    fused: Annotated[int, Column("fused", "count", "of them, inside a fusion")]
    flops: Annotated[float, Column("FLOPs", "amount")]
    transcendentals: Annotated[float, Column("transcendentals", "amount", wide=True)]
    bytes: Annotated[float, Column("bytes", "bytes")]


@dataclass(frozen=True)
class FusionRow(Row):
    """A fusion. The row's id is the name of the fusion instruction."""

    fusion: Annotated[str, Column("fusion", "code")]
    kind: Annotated[str, Column("kind", wide=True)]
    parts: Annotated[str, Column("of")]
    lines: Annotated[str, Column("lines", mark="inferred")]
    flops: Annotated[float, Column("FLOPs", "amount", wide=True)]
    bytes: Annotated[float, Column("bytes", "bytes")]
    inferred: bool


@dataclass(frozen=True)
class SourceText:
    """A part of the user's code. `first` is the line number of its first line."""

    file: str
    title: str
    cell: int | None
    first: int
    lines: list[str]


class SourceLine(NamedTuple):
    """A line of user code: an index into `sources`, and the line number."""

    source: int
    line: int


class Other(NamedTuple):
    """A program to compare with."""

    id: int
    title: str


@dataclass(frozen=True)
class SourceLines:
    """The lines of user code that became instructions. Later answers may extend both lists."""

    sources: list[SourceText]
    lines: list[SourceLine]


@dataclass(frozen=True)
class HloData(SourceLines):
    """A program.

    Attributes:
        page: the heading, and the tables as tabs. The table `lines` has the costs that are shown beside the code.
        name: the name of the program, for a file to save.
        others: programs to compare with: first those of the same function, then the latest.
        stages: the available stages, in order.
        stage, line, grep: what to show at first: a stage, an L, and a word or "".
    """

    page: Page
    name: str
    others: list[Other]
    stages: list[str]
    stage: str
    line: int
    grep: str


@dataclass(frozen=True)
class StageAnswer(SourceLines):
    """The text of one stage.

    Attributes:
        groups: lists of Ls.
        links: for each line of `text`, an index into `groups`, or -1.
        inferred: the zero-based lines of `text` whose links are guesses, because XLA recorded no origin for them.
    """

    stage: str
    title: str
    text: str
    groups: list[list[int]]
    links: list[int]
    inferred: list[int]


class GraphNode(NamedTuple):
    """An instruction, or a scope; `number` is how many equal scopes it represents."""

    id: int
    label: str
    detail: str
    distance: int
    flops: float
    bytes: float
    line: int
    number: int


class GraphEdge(NamedTuple):
    """An edge from a producer to a consumer."""

    start: int
    end: int


@dataclass(frozen=True)
class GraphAnswer:
    """Instructions or scopes, and the edges between them. `cut` is true if some nodes were left out."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    cut: bool


@dataclass(frozen=True)
class InstructionAnswer:
    """One instruction: its Ls, and all facts about it."""

    name: str
    lines: list[int]
    facts: Facts


def tables(reading: Reading, costs: list[CostRow]) -> tuple[Section, ...]:
    """The tables of a program: lines (unless `costs` is empty), opcodes, fusions and buffers."""
    opcodes = [
        OpcodeRow(
            id=o.opcode,
            opcode=o.opcode,
            number=o.number,
            fused=o.fused,
            flops=o.cost.flops,
            transcendentals=o.cost.transcendentals,
            bytes=o.cost.bytes,
        )
        for o in reading.opcodes
    ]
    fusions = [
        FusionRow(
            id=f.instruction.name,
            fusion=f.instruction.name,
            kind=f.kind,
            parts=parts_of(f.parts),
            lines=", ".join(str(p.line) for p in f.locations),
            flops=f.cost.flops,
            bytes=f.cost.bytes,
            inferred=f.instruction.id in reading.module.inferred,
        )
        for f in reading.fusions[:_ROWS]
    ]
    buffers = buffer_rows(reading.buffers[:_ROWS])
    memory = reading.program.memory()
    sections: list[Section] = []
    if costs:
        sections.append(
            Table("lines", columns(CostRow, costs), costs, "By line", "Cost by line", selects=True)
        )
    sections.append(
        Table(
            "opcodes", columns(OpcodeRow, opcodes), opcodes, "By opcode", "Instructions by opcode"
        )
    )
    if fusions:
        shown = columns(FusionRow, fusions)
        title = f"Fusions ({_of_how_many(fusions, reading.fusions)})"
        omitted = _omitted(fusions, reading.fusions, "most expensive")
        sections.append(Table("fusions", shown, fusions, title, omitted=omitted, selects=True))
    if memory is not None:
        sections.append(memory_facts(memory, "Memory"))
    if buffers:
        shown = columns(BufferRow, buffers)
        omitted = _omitted(buffers, reading.buffers, "largest")
        sections.append(
            Table("buffers", shown, buffers, "Memory", "Memory by buffer", omitted=omitted)
        )
    return tuple(sections)


def _of_how_many(shown: Sequence[object], every: Sequence[object]) -> str:
    """How many rows there are; if not all of them are shown, how many of how many."""
    number = written(len(every), "count")
    return number if len(shown) == len(every) else f"{len(shown)} of {number}"


def _omitted(shown: Sequence[object], every: Sequence[object], which: str) -> str:
    """The sentence below a table that shows a part of its rows."""
    return "" if len(shown) == len(every) else f"The {which} {_of_how_many(shown, every)}."
