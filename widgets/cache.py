"""`%jax cache`: what was compiled in this session, and why it was compiled again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from jaxtorch.insight.programs import ProgramInfo, keep, kept, kept_count, program
from jaxtorch.insight.recompiles import (
    FunctionInfo,
    Retrace,
    Total,
    clear,
    functions,
    named,
    totals,
)
from jaxtorch.programs import stats

from .locations import label, location_id
from .page import Action, Column, Note, Notes, Page, Row, Section, Table, columns
from .protocol import Json
from .units import counted, written
from .view import PageView

_MOST_SITES = 100  # lines, most expensive first
_MOST_PROGRAMS = 300  # of one function; the latest are shown
_MOST_REASONS = 30  # of one function; the latest are shown
_PERIOD = 1.0  # seconds


@dataclass(frozen=True)
class FunctionRow(Row):
    """A function, a cell, or all eager operators. Memory, code and FLOPs are the maxima over its programs."""

    name: Annotated[str, Column("name", "code", most=20)]
    kind: Annotated[str, Column("kind")]
    location: Annotated[str, Column("where", most=14)]
    programs: Annotated[int, Column("programs", "count", wider=True, text=False)]
    calls: Annotated[int | None, Column("calls", "count")]
    hits: Annotated[int | None, Column("hits", "count", "calls that found a program", wider=True)]
    traced: Annotated[int | None, Column("traced", "count")]
    trace: Annotated[float, Column("trace", "seconds", wide=True)]
    lowering: Annotated[float, Column("lower", "seconds", wider=True, text=False)]
    xla: Annotated[float, Column("XLA", "seconds", wide=True)]
    seconds: Annotated[float, Column("all", "seconds", "trace, lowering and XLA", text=False)]
    code: Annotated[int | None, Column("code", "bytes", wider=True, text=False)]
    memory: Annotated[int | None, Column("memory", "bytes", "the peak of one run", wide=True)]
    flops: Annotated[int | None, Column("FLOPs", "amount", "of one run", wide=True)]


@dataclass(frozen=True)
class ProgramRow(Row):
    """A program of a function. `keepable` says whether its text can be kept."""

    program: Annotated[str, Column("program", "code")]
    inputs: Annotated[str, Column("inputs", "code")]
    location: Annotated[str, Column("where", wider=True)]
    calls: Annotated[int | None, Column("calls", "count", wide=True)]
    trace: Annotated[float, Column("trace", "seconds", wide=True)]
    lowering: Annotated[float, Column("lower", "seconds", wider=True)]
    xla: Annotated[float, Column("XLA", "seconds", wide=True)]
    seconds: Annotated[float, Column("all", "seconds", "trace, lowering and XLA")]
    code: Annotated[int | None, Column("code", "bytes", wider=True)]
    memory: Annotated[int | None, Column("memory", "bytes", wide=True)]
    flops: Annotated[int | None, Column("FLOPs", "amount", wide=True)]
    cached: Annotated[str, Column("cache", help="whether the persistent cache had it", wider=True)]
    hlo: Annotated[str, Column("HLO", help="whether its text is kept, or gone with its function")]
    keepable: bool


@dataclass(frozen=True)
class TotalRow(Row):
    """The compile time of one line, or of one cell."""

    location: Annotated[str, Column("where")]
    programs: Annotated[int, Column("programs", "count")]
    seconds: Annotated[float, Column("compile time", "seconds")]


# Name of a sort order -> the value to sort by, and whether the order is descending.
SORTS: dict[str, tuple[Callable[[FunctionInfo], int | float | str], bool]] = {
    "order": (lambda f: f.programs[0].id, False),
    "name": (lambda f: f.title.lower(), False),
    "calls": (lambda f: f.calls, True),
    "hits": (lambda f: f.hits, True),
    "traced": (lambda f: f.traces, True),
    "trace": (lambda f: sum(p.trace_seconds for p in f.programs), True),
    "lowering": (lambda f: sum(p.lowering_seconds for p in f.programs), True),
    "xla": (lambda f: sum(p.xla_seconds for p in f.programs), True),
    "time": (lambda f: f.seconds, True),
    "memory": (lambda f: _most(f, _peak) or 0, True),
    "flops": (lambda f: _most(f, lambda p: p.flops) or 0, True),
}


class CacheView(PageView):
    """The compiled programs of the session, grouped by function.

    `answer("clear", {row})` drops the programs of a function; without a row, those of all functions.
    `answer("keep", {row})` keeps the text of a program.
    """

    def __init__(self, sort: str = "order", filter: str = "", all_of_them: bool = False):
        self.sort, self.filter, self.all_of_them = sort, filter, all_of_them
        self._counted_at = 0.0
        self._counts: object = None

    def revision(self) -> object:
        records = list(stats.compiled)
        now = time.monotonic()
        # Drawing takes milliseconds. So new programs are shown at once, but call counts only once a second.
        if now - self._counted_at > _PERIOD:
            sources = {id(r.cause.function): r.cause.function for r in records}
            hits = sum(source.hits for source in sources.values())
            self._counted_at, self._counts = now, (sum(r.calls for r in records), hits)
        return (
            len(records),
            sum(r.cleared for r in records),
            kept_count(),
            stats.evicted,
            self._counts,
        )

    def page(self) -> Page:
        key, greatest_first = SORTS[self.sort]
        selected = sorted(functions(self.all_of_them), key=key, reverse=greatest_first)
        programs = [p for f in selected for p in f.programs]
        rows = [_row(f) for f in selected]
        cells = [_total_row(t, by_cell=True) for t in totals(programs, by_cell=True)]
        lines = [_total_row(t) for t in totals(programs)[:_MOST_SITES]]
        return Page(
            counted(len(programs), "program"),
            tuple(_facts(selected, programs)),
            sections=(
                Table(
                    "rows",
                    columns(FunctionRow, rows),
                    rows,
                    "By function",
                    name="What was compiled",
                    empty="Nothing has been compiled in this session yet.",
                    weight="seconds",
                    actions=(Action("clear", "clear"),),
                ),
                Table(
                    "cells",
                    columns(TotalRow, cells),
                    cells,
                    "By cell",
                    "Compile time by cell",
                    text_rows=12,
                ),
                Table(
                    "sites",
                    columns(TotalRow, lines),
                    lines,
                    "By line",
                    "Compile time by line",
                    text_rows=0,
                ),
            ),
            actions=(Action("clear all", "clear"),),
            filter=self.filter,
            filters="programs",
        )

    def answer(self, ask: str, arguments: Mapping[str, Json]) -> object:
        if ask == "clear":
            row = arguments.get("row")
            clear(functions(all_of_them=True) if row is None else named(f"#{row}"))
            return None
        if ask == "keep":
            keep(program(arguments["row"]))
            return None
        return super().answer(ask, arguments)


def _facts(selected: list[FunctionInfo], programs: list[ProgramInfo]) -> list[str]:
    steps = {
        "trace": sum(p.trace_seconds for p in programs),
        "lowering": sum(p.lowering_seconds for p in programs),
        "XLA": sum(p.xla_seconds for p in programs),
    }
    facts = [f"{written(seconds, 'seconds')} {name}" for name, seconds in steps.items()]
    retraces = sum(len(f.retraces) for f in selected)
    if retraces:
        facts.append("retraced once" if retraces == 1 else f"retraced {retraces} times")
    hits = sum(p.persistent_hit is True for p in programs)
    if hits:
        facts.append(f"{hits} found in the persistent cache")
    if stats.evicted:
        facts.append(f"{stats.evicted} evicted (`program_memory`)")
    if any(f.kind == "jax.jit" for f in selected):
        facts.append("JAX does not report how often a jax.jit runs")
    return facts


def _row(function: FunctionInfo) -> FunctionRow:
    programs = function.programs
    captured = function.programs[0].captured
    signatures = [", ".join(p.signature) for p in programs[-_MOST_PROGRAMS:]]
    return FunctionRow(
        id=function.id,
        search_text=" ".join(
            dict.fromkeys([function.name, *(p.name for p in programs), *signatures])
        ),
        detail=_detail(function),
        opened=bool(function.retraces),
        name=function.title,
        kind=function.kind,
        location=label(function.location),
        programs=len(programs),
        calls=function.calls if captured or function.calls else None,
        hits=function.hits if captured else None,
        traced=function.traces or None,
        trace=sum(p.trace_seconds for p in programs),
        lowering=sum(p.lowering_seconds for p in programs),
        xla=sum(p.xla_seconds for p in programs),
        seconds=function.seconds,
        code=_most(function, _code) or None,
        memory=_most(function, _peak),
        flops=_most(function, lambda p: p.flops),
    )


def _detail(function: FunctionInfo) -> tuple[Section, ...]:
    """The sections that open below the row of a function: why it was retraced, and its programs."""
    sections: list[Section] = []
    if function.retraces:
        count = len(function.retraces)
        times = "once" if count == 1 else f"{count} times"
        notes = _advised(function.retraces[-_MOST_REASONS:])
        sections.append(Notes(tuple(notes), f"retraced {times}"))
    rows = [_program_row(p) for p in function.programs[-_MOST_PROGRAMS:]]
    left = len(function.programs) - len(rows)
    sections.append(
        Table(
            f"programs of {function.id}",
            columns(ProgramRow, rows),
            rows,
            f"Programs of {function.title}",
            omitted=f"{left} earlier ones are not shown." if left else "",
            weight="seconds",
            actions=(Action("keep", "keep", when="keepable"),),
        )
    )
    return tuple(sections)


def _advised(retraces: Iterable[Retrace]) -> list[Note]:
    """A note for each retrace. Each piece of advice appears once, under the latest retrace that it applies to."""
    advised = {""}
    notes = []
    for retrace in reversed(list(retraces)):
        new = tuple(advice for advice in dict.fromkeys(retrace.advice) if advice not in advised)
        advised.update(new)
        location = f" ({label(retrace.location)})" if retrace.location is not None else ""
        what = ", ".join(retrace.what) or "for an unknown reason"
        notes.append(Note(f"retraced: {what}{location}", new))
    return notes[::-1]


def _program_row(info: ProgramInfo) -> ProgramRow:
    alive, is_kept = info.alive, kept(info)
    part = {"": "", "saving": " forward", "backward": " backward"}[info.part]
    name = f" {info.name}" if info.kind == "eager" else ""
    return ProgramRow(
        id=info.id,
        program=f"#{info.id}{name}{part}",
        inputs=", ".join(info.signature) or "none",
        location=label(info.location),
        calls=info.calls if info.calls or info.kind not in ("eager", "jax.jit") else None,
        trace=info.trace_seconds,
        lowering=info.lowering_seconds,
        xla=info.xla_seconds,
        seconds=info.seconds,
        code=_code(info) or None,
        memory=_peak(info),
        flops=info.flops,
        cached={True: "hit", False: "miss", None: ""}[info.persistent_hit],
        hlo="kept" if is_kept else "" if alive else "gone",
        keepable=alive and not is_kept,
    )


def _total_row(total: Total, by_cell: bool = False) -> TotalRow:
    return TotalRow(
        id=location_id(total.location, by_cell),
        location=label(total.location, by_cell) or "elsewhere",
        programs=total.programs,
        seconds=total.seconds,
    )


def _code(info: ProgramInfo) -> int | None:
    """The size of the machine code, in bytes."""
    memory = info.memory()
    return None if memory is None else memory.code


def _peak(info: ProgramInfo) -> int | None:
    """The peak memory of one run, in bytes."""
    memory = info.memory()
    return None if memory is None else memory.peak


def _most(function: FunctionInfo, ask: Callable[[ProgramInfo], int | None]) -> int | None:
    """The maximum over the programs of a function; None if no value is known."""
    return max((n for p in function.programs if (n := ask(p)) is not None), default=None)
