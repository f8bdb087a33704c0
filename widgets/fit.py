"""The fit report of a compiled program: whether it fits a chip, its memory there, and its estimated time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from jaxtorch.insight.fit.memory import KindMemory, PeakBuffer
from jaxtorch.insight.fit.report import Fit, Part

from .page import Column, Note, Notes, Page, Row, Section, Table, columns
from .units import amount, counted, written
from .view import PageView

_TEXT_ROWS = 8
_NOWHERE = {"lines": "(the compiler's own)", "parts": "(outside of modules)"}


@dataclass(frozen=True)
class KindRow(Row):
    """The memory of one kind."""

    kind: Annotated[str, Column("kind")]
    bytes: Annotated[int, Column("memory", "bytes")]
    share: Annotated[float | None, Column("share", "share")]
    padding: Annotated[int | None, Column("padding", "bytes", wide=True)]
    donated: Annotated[
        int | None, Column("reused", "bytes", "holds an input first, and an output afterwards")
    ]
    returned: Annotated[
        int | None, Column("returned", "bytes", "results that reuse no memory of an input")
    ]


@dataclass(frozen=True)
class OwnerRow(Row):
    """The memory of the inputs of one module."""

    module: Annotated[str, Column("module", "code", most=60)]
    bytes: Annotated[int, Column("memory", "bytes")]


@dataclass(frozen=True)
class BufferRow(Row):
    """A buffer at the peak."""

    name: Annotated[str, Column("buffer", "code", most=40)]
    kind: Annotated[str, Column("kind")]
    shape: Annotated[str, Column("shape", "code", most=36)]
    stored: Annotated[int, Column("memory", "bytes")]
    padding: Annotated[int | None, Column("padding", "bytes")]
    padded: Annotated[str, Column("stored as", wide=True)]
    line: Annotated[str, Column("made at", most=40)]
    module: Annotated[str, Column("module", "code", wide=True, text=False)]


@dataclass(frozen=True)
class UnitRow(Row):
    """One unit of the chip."""

    unit: Annotated[str, Column("unit")]
    limits: Annotated[float | None, Column("waited for", "seconds", mark="estimate")]
    share: Annotated[float | None, Column("share", "share")]
    works: Annotated[
        float | None, Column("works", "seconds", "the units work at the same time", mark="estimate")
    ]
    estimate: bool = True


@dataclass(frozen=True)
class PartRow(Row):
    """The time of a line or of a module."""

    name: Annotated[str, Column("where", "code", most=60)]
    seconds: Annotated[float, Column("time", "seconds", mark="estimate")]
    share: Annotated[float | None, Column("share", "share")]
    matrix: Annotated[float | None, Column("matrix unit", "seconds", mark="estimate")]
    memory: Annotated[float | None, Column("HBM", "seconds", mark="estimate")]
    links: Annotated[float | None, Column("links", "seconds", mark="estimate")]
    flops: Annotated[float | None, Column("FLOPs", "amount", wide=True)]
    moved: Annotated[float | None, Column("moved", "bytes", wide=True)]
    estimate: bool = True


@dataclass(frozen=True)
class WideRow(Row):
    """Arithmetic on 64-bit numbers."""

    dtype: Annotated[str, Column("dtype", "code")]
    operations: Annotated[int, Column("operations", "count")]
    elements: Annotated[int, Column("numbers", "amount", "computed in one run of the program")]
    line: Annotated[str, Column("line", most=60)]


class FitView(PageView):
    """A fit report.

    Args:
        fit: the report.
        name: of the program, for the heading.
        note: what to know about it besides.
    """

    def __init__(self, fit: Fit, name: str = "", note: str = ""):
        self.fit, self.name, self.note = fit, name, note

    def page(self) -> Page:
        fit = self.fit
        chips = counted(fit.devices, "chip") if fit.devices > 1 else ""
        # The verdict of a device that is no TPU names it, and the name of a session's program may name the target.
        named = fit.chip is None or self.name.endswith(f" for {fit.target}")
        facts = [self.name, "" if named else fit.target, self.note, chips]
        if fit.utilization is not None:
            used = written(fit.utilization, "share")
            facts.append(f"~{used} of the matrix units' peak, {amount(fit.flops)} FLOPs a step")
        return Page(
            fit.verdict,
            facts=tuple(fact for fact in facts if fact),
            sections=tuple(self._sections()),
            filters="lines and modules",
        )

    def _sections(self) -> list[Section]:
        fit = self.fit
        sections = [*_findings(fit), _memory(fit, "kinds", "Memory", 100)]
        owners = [OwnerRow(id=m.path, module=m.path, bytes=m.bytes) for m in fit.modules]
        sections.append(_table("owners", OwnerRow, owners, "Memory of the inputs by module"))
        buffers = _buffers(fit.peak)
        sections.append(_table("peak", BufferRow, buffers, "The largest buffers at the peak"))
        if fit.time is not None:
            sections += _time(fit, "units", "Time", 100)
            for key, parts, name in (("lines", fit.lines, "line"), ("parts", fit.parts, "module")):
                rows = [
                    _part(part, _NOWHERE[key], i, fit.time.total) for i, part in enumerate(parts)
                ]
                sections.append(_table(key, PartRow, rows, f"Time by {name}"))
        if fit.padding:
            sections.append(_table("padding", BufferRow, _buffers(fit.padding), "Padding"))
        if fit.wide:
            wide = [
                WideRow(
                    id=i,
                    dtype=work.dtype,
                    operations=work.operations,
                    elements=work.elements,
                    line=str(work.location or ""),
                )
                for i, work in enumerate(fit.wide)
            ]
            sections.append(_table("wide", WideRow, wide, "64-bit numbers"))
        notes = tuple(map(Note, fit.assumptions))
        return [*sections, Notes(notes, "What is assumed", text_most=0)]


def brief(fit: Fit, key: str) -> tuple[Section, ...]:
    """The findings, the memory by kind and the time by unit, below the row of another table that has this key."""
    return (
        *_findings(fit),
        _memory(fit, f"kinds {key}", "", 0),
        *_time(fit, f"units {key}", "", 0),
    )


def _findings(fit: Fit) -> list[Section]:
    notes = tuple(map(Note, fit.findings))
    return [Notes(notes, text_most=len(notes))] if notes else []


def _memory(fit: Fit, key: str, title: str, text: int) -> Table:
    kinds = [_kind(row, fit.used) for row in fit.memory if row.bytes]
    return _table(key, KindRow, kinds, title, text)


def _time(fit: Fit, key: str, title: str, text: int) -> list[Table]:
    if fit.time is None:
        return []
    units = _units(fit.time.units, fit.time.limits, fit.time.total)
    return [_table(key, UnitRow, units, title, text)]


def _table(
    key: str, kind: type[Row], rows: Sequence[Row], title: str, text: int = _TEXT_ROWS
) -> Table:
    return Table(key, columns(kind, rows), rows, title, text_rows=text)


def _kind(row: KindMemory, used: int) -> KindRow:
    return KindRow(
        id=row.kind,
        kind=row.kind,
        bytes=row.bytes,
        share=row.bytes / used if used else None,
        padding=row.padding or None,
        donated=row.donated or None,
        returned=row.returned or None,
    )


def _buffers(buffers: Sequence[PeakBuffer]) -> list[BufferRow]:
    return [
        BufferRow(
            id=i,
            name=b.name,
            kind=b.kind,
            shape=b.shape,
            stored=b.stored,
            padding=b.padding or None,
            padded=", ".join(f"{size} as {stored}" for size, stored in b.padded),
            line=str(b.location or ""),
            module=b.module,
        )
        for i, b in enumerate(buffers)
    ]


def _units(works: Mapping[str, float], limits: Mapping[str, float], total: float) -> list[UnitRow]:
    used = [unit for unit in works.keys() | limits.keys() if works.get(unit) or limits.get(unit)]
    names = sorted(used, key=lambda unit: -limits.get(unit, 0.0))
    return [
        UnitRow(
            id=unit,
            unit=unit,
            limits=limits.get(unit),
            share=limits.get(unit, 0.0) / total if total else None,
            works=works.get(unit),
        )
        for unit in names
    ]


def _part(part: Part, nowhere: str, number: int, total: float) -> PartRow:
    matrix, memory = part.units.get("matrix unit"), part.units.get("HBM")
    links = sum(s for unit, s in part.units.items() if unit not in ("matrix unit", "HBM"))
    return PartRow(
        id=number,
        name=part.name or nowhere,
        seconds=part.seconds,
        share=part.seconds / total if total else None,
        matrix=matrix or None,
        memory=memory or None,
        links=links or None,
        flops=part.flops or None,
        moved=part.bytes or None,
    )
