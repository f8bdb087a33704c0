"""`%jax cache`: what was compiled in this session, and why again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from textwrap import wrap
from typing import Any

from jaxtorch.dispatch import stats
from jaxtorch.insight import events
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

from .places import place_data, place_id, where
from .tables import details, html_table, shortened, text_table
from .units import amount, duration, size
from .view import View

# What a person may sort by -> its value; and whether the greatest comes first.
SORTS: dict[str, tuple[Callable[[FunctionInfo], Any], bool]] = {
    "order": (lambda f: f.programs[0].id, False),
    "name": (lambda f: f.name.lower(), False),
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
_MOST_SITES = 100  # lines in the live form, the dearest first
_MOST_PROGRAMS = 300  # of one function, in data and HTML: the latest
_TOTALS = 12
_PERIOD = 1.0  # seconds


class CacheView(View):
    """The compiled programs of the session, by what they come from.

    `data()`; a time is in seconds, a size in bytes, and what is not known is null:

    | key | what |
    | --- | --- |
    | recording | whether JAX's own programs and calls of eager operators are recorded |
    | sort, filter | what to show first: a column of `rows` ("" is their order), words |
    | total | {programs, functions, retraced, trace, lowering, xla} |
    | rows | functions; their keys are below |
    | cells, sites | what each cell, each line compiled, the dearest first; their keys are below |

    A row is `id`, `name`, `kind`; `place` (its last line, as text), `file`, `line`, `cell`; `calls`, `hits`, `traces`;
    `trace`, `lowering`, `xla`, `seconds`; `code`, `memory`, `flops` (the most that one run of a program of it takes);
    `signature` (the last, as text); `cached` (how many programs came from the persistent cache), `keeps` (how many have
    their text kept); `why` (its later traces: {nth, place, what: [...], advice: [...]}, an advice may be "");
    `programs`, of which `left_out` earlier ones are not there.

    A program is `id`, `name`, `place`, `calls`, `trace`, `lowering`, `xla`, `seconds`, `code`, `memory`, `flops`;
    `part`: "", "saving" (forward, for a backward) or "backward"; `signature`: [...]; `persistent_hit`, `alive`, `kept`;
    `reason` (text).

    A cell or site is `id`, `place` (as text), `file`, `line`, `cell`, `programs` (a count), `seconds`.

    `answer(ask, arguments)`:

    | ask | arguments | answer |
    | --- | --- | --- |
    | clear | function (a row's id), or nothing for all | null |
    | keep | program (an id) | null; the program is `kept` from then on |
    """

    kind = "cache"

    def __init__(self, sort: str = "order", filter: str = "", all_of_them: bool = False):
        self.sort, self.filter, self.all_of_them = sort, filter, all_of_them
        self._looked = 0.0
        self._counts: object = None

    def functions(self) -> list[FunctionInfo]:
        """What is shown, in order."""
        words = self.filter.lower().split()
        found = [f for f in functions(self.all_of_them) if all(word in _words(f) for word in words)]
        key, greatest_first = SORTS[self.sort]
        return sorted(found, key=key, reverse=greatest_first)

    # -- text and HTML ----------------------------------------------------------------------------------------

    def text(self) -> str:
        found = self.functions()
        if not found:
            return self._nothing()
        lines = [_summary(found), ""]
        narrow = [i for i, name in enumerate(_NAMES) if name != "lower"]
        rows = [[row[i] for i in narrow] for row in map(_cells, found)]
        table = text_table([_NAMES[i] for i in narrow], rows, left=3)
        lines.append(table[0])
        for function, line in zip(found, table[1:], strict=True):
            lines.append(line)
            for text in _why(function, 3):
                indent = " " * (6 if text.startswith(" ") else 4)
                lines += wrap(text.strip(), 100, initial_indent=indent, subsequent_indent="      ")
        cells = totals(_programs(found), by_cell=True)[:_TOTALS]
        if len(cells) > 1:
            lines += ["", *wrap("By cell: " + ", ".join(map(_total, cells)), 100)]
        return "\n".join(lines)

    def html(self) -> str:
        found = self.functions()
        if not found:
            return f"<p>{escape(self._nothing())}</p>"
        rows: list[Sequence[str] | str] = []
        for function in found:
            rows.append(_cells(function, wide=True))
            rows.append(_opened(function))
        parts = [
            f'<p style="margin:4px 0">{escape(_summary(found))}</p>',
            html_table(_NAMES, rows, left=3),
        ]
        known = _programs(found)
        for title, by_cell in (("By cell", True), ("By line", False)):
            sums = totals(known, by_cell)[:_TOTALS]
            if sums:
                columns = ("cell" if by_cell else "line", "programs", "compile time")
                cells = [(where(t.place, by_cell), str(t.programs), _time(t.seconds)) for t in sums]
                parts.append(details(title, html_table(columns, cells)))
        return "".join(parts)

    def _nothing(self) -> str:
        if self.filter and functions(self.all_of_them):
            return f"Nothing that was compiled has {self.filter!r} in its name, kind or place."
        return "Nothing was compiled yet in this session."

    # -- live -------------------------------------------------------------------------------------------------

    def revision(self) -> object:
        known = list(stats.compiled)
        now = time.monotonic()
        # What was compiled is shown at once, how often it runs once a second: drawing it takes milliseconds.
        if now - self._looked > _PERIOD:
            sources = {id(r.cause.source): r.cause.source for r in known}
            hits = sum(source.hits for source in sources.values())
            self._looked, self._counts = now, (sum(r.calls for r in known), hits)
        return len(known), sum(r.cleared for r in known), kept_count(), self._counts

    def data(self) -> dict[str, Any]:
        found = functions(self.all_of_them)
        known = _programs(found)
        return {
            "recording": events.recording(),
            "sort": {"order": "", "traced": "traces", "time": "seconds"}.get(self.sort, self.sort),
            "filter": self.filter,
            "total": {
                "programs": len(known),
                "functions": len(found),
                "retraced": sum(len(f.retraces) for f in found),
                "trace": sum(p.trace_seconds for p in known),
                "lowering": sum(p.lowering_seconds for p in known),
                "xla": sum(p.xla_seconds for p in known),
            },
            "rows": [_row(f) for f in found],
            "cells": [_total_data(t, True) for t in totals(known, by_cell=True)],
            "sites": [_total_data(t, False) for t in totals(known)[:_MOST_SITES]],
        }

    def answer(self, ask: str, arguments: dict[str, Any]) -> Any:
        if ask == "clear":
            one = arguments.get("function")
            clear(functions(all_of_them=True) if one is None else named(f"#{one}"))
            return None
        if ask == "keep":
            return keep(program(arguments["program"]))
        return super().answer(ask, arguments)


_NAMES = (
    "name",
    "kind",
    "where",
    "calls",
    "hits",
    "traced",
    "trace",
    "lower",
    "XLA",
    "memory",
    "FLOPs",
)


def _cells(function: FunctionInfo, wide: bool = False) -> tuple[str, ...]:
    """A row of the table."""
    known = function.programs
    counted = function.kind != "eager" or function.calls or events.recording()
    memory, flops = _most(function, _peak), _most(function, lambda p: p.flops)
    name = f"{function.name} ({len(known)})" if len(known) > 1 else function.name
    return (
        name if wide else shortened(name, 20),
        function.kind,
        where(function.place) if wide else shortened(where(function.place), 14),
        str(function.calls) if counted and function.kind != "jax.jit" else "",
        str(function.hits) if function.kind not in ("eager", "jax.jit") else "",
        str(function.traces) if function.traces else "",
        _time(sum(p.trace_seconds for p in known)),
        _time(sum(p.lowering_seconds for p in known)),
        _time(sum(p.xla_seconds for p in known)),
        "" if memory is None else size(memory),
        "" if flops is None else amount(flops),
    )


def _summary(found: list[FunctionInfo]) -> str:
    known = _programs(found)
    trace, lowering, xla = (
        _time(sum(getattr(p, f"{step}_seconds") for p in known))
        for step in ("trace", "lowering", "xla")
    )
    count = f"{len(known)} program{'s'[: len(known) != 1]}"
    again = sum(len(f.retraces) for f in found)
    hits = sum(p.persistent_hit is True for p in known)
    parts = [f"{count}: trace {trace}, lowering {lowering}, XLA {xla}"]
    parts += [f"traced again {again} times" if again != 1 else "traced again once"] if again else []
    parts += [f"{hits} found in the persistent cache"] if hits else []
    if any(f.kind == "jax.jit" for f in found):
        parts.append("how often a jax.jit runs JAX does not tell")
    return "; ".join(parts)


def _why(function: FunctionInfo, most: int) -> list[str]:
    """Why it was traced again: the latest, and what to do about each once."""
    lines = []
    retraces = function.retraces[-most:]
    if len(function.retraces) > most:
        lines.append(f"traced again {len(function.retraces)} times, the last {most}:")
    said: set[str] = set()
    for retrace in retraces:
        lines.append(f"traced again: {', '.join(retrace.what)}")
        for advice in retrace.advice:
            if advice and advice not in said:
                said.add(advice)
                lines.append(f"  {advice}")
    return lines


def _opened(function: FunctionInfo) -> str:
    """What opens under a function's row: why it was traced again, and its programs."""
    shown = function.programs[-_MOST_PROGRAMS:]
    rows = [_program_cells(p) for p in shown]
    left = len(function.programs) - len(shown)
    inner = html_table(
        (
            "#",
            "program",
            "inputs",
            "where",
            "calls",
            "trace",
            "lower",
            "XLA",
            "code",
            "memory",
            "FLOPs",
            "cache",
        ),
        rows,
        left=4,
        caption=f"the latest {len(shown)}; {left} earlier ones are not shown" if left else "",
    )
    parts = []
    if function.retraces:
        items = "".join(_reason(r) for r in function.retraces[-30:])
        count = len(function.retraces)
        title = "Traced again once" if count == 1 else f"Traced again {count} times"
        parts.append(
            details(f"{title}: {', '.join(function.retraces[-1].what)}", f"<ol>{items}</ol>")
        )
    count = len(function.programs)
    parts.append(details(f"{count} program{'s'[: count != 1]}", inner))
    return "".join(parts)


def _reason(retrace: Retrace) -> str:
    advice = "".join(
        f'<br><span style="opacity:0.7">{escape(a)}</span>'
        for a in dict.fromkeys(retrace.advice)
        if a
    )
    at = f" — {escape(where(retrace.place))}" if retrace.place else ""
    return f'<li value="{retrace.nth}">{escape(", ".join(retrace.what))}{at}{advice}</li>'


def _program_cells(info: ProgramInfo) -> tuple[str, ...]:
    memory = info.memory()
    flops = info.flops
    marks = {True: "hit", False: "miss", None: ""}[info.persistent_hit]
    return (
        str(info.id),
        _title(info) + ("" if info.alive else " (gone)") + (" (kept)" if kept(info) else ""),
        shortened(", ".join(info.signature), 80),
        where(info.place),
        str(info.calls) if info.calls or info.kind not in ("eager", "jax.jit") else "",
        _time(info.trace_seconds),
        _time(info.lowering_seconds),
        _time(info.xla_seconds),
        size(memory.code) if memory is not None and memory.code else "",
        "" if memory is None else size(memory.peak),
        "" if flops is None else amount(flops),
        marks,
    )


def _title(info: ProgramInfo) -> str:
    return {"": info.name, "saving": f"{info.name}, forward", "backward": f"{info.name}, backward"}[
        info.part
    ]


def _row(function: FunctionInfo) -> dict[str, Any]:
    known = function.programs
    captured = function.kind not in ("eager", "jax.jit", "engine")
    return {
        "id": function.id,
        "name": function.name,
        "kind": function.kind,
        **place_data(function.place),
        "calls": function.calls if captured or function.calls else None,
        "hits": function.hits if captured else None,
        "traces": function.traces or None,
        "trace": sum(p.trace_seconds for p in known),
        "lowering": sum(p.lowering_seconds for p in known),
        "xla": sum(p.xla_seconds for p in known),
        "seconds": function.seconds,
        "code": _most(function, lambda p: p.code_bytes),
        "memory": _most(function, _peak),
        "flops": _most(function, lambda p: p.flops),
        "signature": ", ".join(known[-1].signature),
        "cached": sum(p.persistent_hit is True for p in known),
        "keeps": sum(map(kept, known)),
        "why": [
            {"nth": r.nth, "place": where(r.place), "what": list(r.what), "advice": list(r.advice)}
            for r in function.retraces
        ],
        "programs": [_program_data(p) for p in known[-_MOST_PROGRAMS:]],
        "left_out": max(0, len(known) - _MOST_PROGRAMS),
    }


def _program_data(info: ProgramInfo) -> dict[str, Any]:
    memory = info.memory()
    return {
        "id": info.id,
        "name": info.name,
        "part": info.part,
        "place": where(info.place),
        "calls": info.calls,
        "trace": info.trace_seconds,
        "lowering": info.lowering_seconds,
        "xla": info.xla_seconds,
        "seconds": info.seconds,
        "code": None if memory is None else memory.code,
        "memory": None if memory is None else memory.peak,
        "flops": info.flops,
        "signature": list(info.signature),
        "persistent_hit": info.persistent_hit,
        "alive": info.alive,
        "kept": kept(info),
        "reason": info.reason,
    }


def _total_data(total: Total, by_cell: bool) -> dict[str, Any]:
    place = place_data(total.place) | {"place": where(total.place, by_cell)}
    return {
        "id": place_id(total.place, by_cell),
        **place,
        "programs": total.programs,
        "seconds": total.seconds,
    }


def _total(total: Total) -> str:
    return f"{where(total.place, True)} {_time(total.seconds)}"


def _time(seconds: float) -> str:
    return duration(seconds * 1e9)


def _peak(info: ProgramInfo) -> int | None:
    memory = info.memory()
    return None if memory is None else memory.peak


def _most(function: FunctionInfo, ask: Callable[[ProgramInfo], int | None]) -> int | None:
    return max((n for p in function.programs if (n := ask(p)) is not None), default=None)


def _programs(found: list[FunctionInfo]) -> list[ProgramInfo]:
    return [p for f in found for p in f.programs]


def _words(function: FunctionInfo) -> str:
    """What a filter looks at."""
    names = {p.name for p in function.programs}
    return " ".join([function.name, function.kind, where(function.place), *names]).lower()
