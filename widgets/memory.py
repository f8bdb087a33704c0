"""`%jax memory`: the arrays on the device, the lines that created them, what keeps them alive, and memory by cell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from jaxtorch.device.memory import max_memory_allocated, mem_get_info
from jaxtorch.insight.hlo.buffers import Allocation
from jaxtorch.insight.memory import CellMemory, LiveArray, cells, live_arrays
from jaxtorch.insight.programs import Location, Memory, ProgramInfo
from jaxtorch.insight.retainers import retainers
from jaxtorch.storage.buffer import usage

from .locations import label, location_id
from .page import Action, Chart, Column, Fact, Facts, Note, Notes, Page, Row, Table, columns
from .protocol import Json
from .units import counted, size
from .view import PageView

_PERIOD = 2.0  # seconds
_MOST = 2000  # arrays in the live form
_MOST_BARS = 120
_TALLEST = 60  # pixels
_LIGHT, _DARK = "#3b82f659", "#3b82f6e6"
_MOST_VALUES = 50  # of one buffer


@dataclass(frozen=True)
class ArrayRow(Row):
    """A live array."""

    name: Annotated[str, Column("name", "code", "the path from a variable", most=40)]
    shape: Annotated[str, Column("shape", "code")]
    dtype: Annotated[str, Column("dtype", "code")]
    location: Annotated[str, Column("made at", wide=True)]
    by: Annotated[str, Column("by", wide=True, most=20)]
    bytes: Annotated[int, Column("size", "bytes")]
    share: Annotated[float | None, Column("share", "share", wide=True, text=False)]


@dataclass(frozen=True)
class LineRow(Row):
    """The arrays that one line created."""

    location: Annotated[str, Column("made at")]
    arrays: Annotated[int, Column("arrays", "count")]
    bytes: Annotated[int, Column("size", "bytes")]


@dataclass(frozen=True)
class CellRow(Row):
    """The memory that tensors of at least 32 KiB held during one cell."""

    cell: Annotated[str, Column("cell")]
    seconds: Annotated[float, Column("began", "seconds", "after the first cell", wide=True)]
    before: Annotated[int, Column("before", "bytes")]
    peak: Annotated[int, Column("peak", "bytes")]
    after: Annotated[int, Column("after", "bytes")]


@dataclass(frozen=True)
class Peaks:
    """The data of a bar chart. It shows the peak of each cell, and the memory that the cell left behind."""

    cells: list[CellRow]


class MemoryView(PageView):
    """The live arrays of the session."""

    def __init__(self, namespace: Mapping[str, Any] | None = None):
        self.namespace = namespace or {}
        self._counted_at = 0.0
        self._revision: object = None

    def revision(self) -> object:
        # Drawing the page walks every object of the session, which is too slow for ten times a second.
        now = time.monotonic()
        if now - self._counted_at > _PERIOD:
            self._counted_at, self._revision = now, (usage.allocated, len(cells()))
        return self._revision

    def page(self) -> Page:
        live = live_arrays(self.namespace)
        total = sum(a.nbytes for a in live)
        free, limit = mem_get_info()
        nameless = [a for a in live if a.name is None and a.tensor]
        facts = [f"peak {size(max_memory_allocated())}", f"{size(free)} free of {size(limit)}"]
        if nameless:
            facts.append(f"{len(nameless)} without a name: {size(sum(a.nbytes for a in nameless))}")
        omitted = live[_MOST:]
        more = (
            f"{len(omitted)} smaller arrays, {size(sum(a.nbytes for a in omitted))}, are not shown."
        )
        arrays = [_array_row(a, total) for a in live[:_MOST]]
        lines = _by_line(live)
        by_cell = list(reversed([_cell_row(i, c) for i, c in enumerate(cells())]))  # newest first
        peaks = Peaks(by_cell[:_MOST_BARS][::-1])
        return Page(
            f"{size(total)} in {counted(len(live), 'array')}",
            tuple(facts),
            sections=(
                Table(
                    "arrays",
                    columns(ArrayRow, arrays),
                    arrays,
                    "Arrays",
                    name="Live arrays",
                    omitted=more if omitted else "",
                    numbered=True,
                    actions=(Action("what keeps it alive", "why"),),
                    text_rows=20,
                ),
                Table(
                    "lines",
                    columns(LineRow, lines),
                    lines,
                    "By line",
                    "Memory by line",
                    text_rows=8,
                ),
                Chart("peaks", peaks, "By cell", lambda: _blocks(peaks), lambda: _bars(peaks)),
                Table(
                    "cells",
                    columns(CellRow, by_cell),
                    by_cell,
                    "By cell",
                    "Memory by cell",
                    text_rows=12,
                ),
            ),
            filter="",
            filters="arrays",
        )

    def answer(self, ask: str, arguments: Mapping[str, Json]) -> object:
        if ask == "why":
            return kept_by(retainers(int(arguments["row"]), self.namespace))
        return super().answer(ask, arguments)


class KeptView(PageView):
    """What keeps an array alive."""

    kind = ""

    def __init__(self, array: LiveArray, ways: Sequence[str]):
        self.array, self.ways = array, list(ways)

    def page(self) -> Page:
        return Page(f"{_describe(self.array)} is kept alive by", sections=(kept_by(self.ways),))


def kept_by(ways: Sequence[str]) -> Notes:
    """What keeps an array alive, as a list."""
    return Notes(tuple(map(Note, ways or ["nothing that Python can see"])), text_most=1000)


@dataclass(frozen=True)
class BufferRow(Row):
    """A block of a program's memory, and the values that occupy it at some time."""

    number: Annotated[str, Column("buffer")]
    kind: Annotated[str, Column("kind")]
    bytes: Annotated[int, Column("size", "bytes")]
    holds: Annotated[str, Column("holds, largest first", "code", most=60)]


class ProgramMemoryView(PageView):
    """The memory of one run of a program."""

    kind = ""

    def __init__(self, program: ProgramInfo, buffers: Sequence[Allocation] = ()):
        self.program, self.memory, self.buffers = program, program.memory(), list(buffers)

    def page(self) -> Page:
        program = self.program
        # What `lower` returned has no number; its title names the device.
        name = f"{program.name} (#{program.id})" if program.id > 0 else program.title
        if self.memory is None:
            return Page(f"{name}: its memory is no longer known to XLA")
        rows = buffer_rows(self.buffers)
        buffers = Table("buffers", columns(BufferRow, rows), rows, "By buffer", text_rows=30)
        return Page(
            f"{name}: peak of {size(self.memory.peak)} in one run",
            sections=(memory_facts(self.memory), *((buffers,) if rows else ())),
        )


def memory_facts(memory: Memory, title: str = "") -> Facts:
    """The memory that XLA allocates for one run of a program."""
    sizes = {
        "arguments": memory.arguments,
        "results": memory.outputs,
        "of these, in donated arguments": memory.alias,
        "intermediate values": memory.temporary,
        "program code": memory.code,
    }
    return Facts(tuple(Fact(name, (size(count),)) for name, count in sizes.items()), title)


def buffer_rows(buffers: Sequence[Allocation]) -> list[BufferRow]:
    """The buffers of a program, the largest first."""
    rows = []
    for buffer in buffers:
        instructions = [h.instruction for h in buffer.values]
        more = len(instructions) - 20
        rows.append(
            BufferRow(
                id=buffer.index,
                search_text=" ".join(instructions),
                detail=(_values(buffer),) if len(instructions) > 1 else (),
                number=str(buffer.index),
                kind=buffer.kind,
                bytes=buffer.size,
                holds=", ".join(instructions[:20]) + (f", {more} more" if more > 0 else ""),
            )
        )
    return rows


def _values(buffer: Allocation) -> Notes:
    """The values that occupy a buffer, and where in it."""
    values = buffer.values[:_MOST_VALUES]
    return Notes(
        tuple(Note(f"{h.instruction}: {size(h.size)} at {h.offset}") for h in values), text_most=0
    )


def _array_row(array: LiveArray, total: int) -> ArrayRow:
    return ArrayRow(
        id=str(array.id),
        name=array.name or ("(no name)" if array.tensor else "(not a tensor)"),
        shape=f"[{', '.join(map(str, array.shape))}]",
        dtype=array.dtype,
        location=label(array.location),
        by=array.made_by.split(".")[0],
        bytes=array.nbytes,
        share=array.nbytes / total if total else None,
    )


def _by_line(arrays: Sequence[LiveArray]) -> list[LineRow]:
    """The arrays by line, the largest first."""
    groups: dict[Location | None, list[int]] = {}
    for array in arrays:
        groups.setdefault(array.location, []).append(array.nbytes)
    rows = [
        LineRow(
            id=location_id(location),
            location=label(location) or "(backward pass or JAX)",
            arrays=len(sizes),
            bytes=sum(sizes),
        )
        for location, sizes in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.bytes)


def _cell_row(index: int, cell: CellMemory) -> CellRow:
    name = "elsewhere" if cell.cell is None else f"[{cell.cell}]"
    return CellRow(
        id=index,
        cell=name,
        seconds=cell.seconds,
        before=cell.before,
        peak=cell.peak,
        after=cell.after,
    )


def _blocks(peaks: Peaks) -> str:
    """The peaks as one line of text."""
    most = max((c.peak for c in peaks.cells), default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[round(7 * c.peak / most)] for c in peaks.cells[-80:])


def _bars(peaks: Peaks) -> str:
    """A bar for the peak of each cell. The memory that the cell left behind is drawn darker.

    Without the style (GitHub, a notebook that is not trusted), nothing remains, and the table below says the same.
    """
    if not peaks.cells:
        return ""
    most = max(c.peak for c in peaks.cells) or 1
    bars = []
    for c in peaks.cells:
        said = f"cell {c.cell}: peak {size(c.peak)}, after {size(c.after)}"
        left = 100 - 100 * c.after / (c.peak or 1)
        bars.append(
            f'<i title="{said}" style="flex:none;width:5px;height:{_TALLEST * c.peak / most:.1f}px;'
            f'background:linear-gradient({_LIGHT} {left:.0f}%,{_DARK} 0)"></i>'
        )
    label = f"memory of the last {len(peaks.cells)} cells, at most {size(most)}"
    return (
        f'<div role="img" aria-label="{label}" '
        f'style="display:flex;gap:1px;align-items:flex-end;height:{_TALLEST}px;margin:4px 0">{"".join(bars)}</div>'
    )


def _describe(array: LiveArray) -> str:
    name = f"`{array.name}` " if array.name else ""
    made = f", made at {label(array.location)}" if array.location is not None else ""
    return f"{name}{array.dtype}[{','.join(map(str, array.shape))}] ({size(array.nbytes)}{made})"
