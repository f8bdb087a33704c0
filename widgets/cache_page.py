"""The static table of compiled programs, as text and as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from textwrap import wrap

from jaxtorch.insight import events
from jaxtorch.insight.programs import ProgramInfo, kept
from jaxtorch.insight.recompiles import FunctionInfo, Retrace, Total, totals
from jaxtorch.programs import stats

from .places import where
from .tables import details, html_table, shortened, text_table
from .units import amount, duration, size

MOST_PROGRAMS = 300  # of one function, in data and HTML; the latest are kept
_TOTALS = 12
_REASONS, _PAGE_REASONS = 3, 30  # of one function, in text and HTML; the latest are kept

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


def lines(found: list[FunctionInfo]) -> list[str]:
    """The text form: a line for each function, and why it was traced again."""
    shown = [*wrap(_summary(found), 100), ""]
    narrow = [i for i, name in enumerate(_NAMES) if name != "lower"]
    rows = [[row[i] for i in narrow] for row in map(_cells, found)]
    table = text_table([_NAMES[i] for i in narrow], rows, left=3)
    shown.append(table[0])
    for function, line in zip(found, table[1:], strict=True):
        shown.append(line)
        for text in _why(function):
            indent = " " * (6 if text.startswith(" ") else 4)
            shown += wrap(text.strip(), 100, initial_indent=indent, subsequent_indent="      ")
    cells = totals(programs_of(found), by_cell=True)[:_TOTALS]
    if len(cells) > 1:
        shown += ["", *wrap("By cell: " + ", ".join(map(_total, cells)), 100)]
    return shown


def page(found: list[FunctionInfo]) -> str:
    """The HTML form: a row for each function with its programs below; totals by cell and by line."""
    rows: list[Sequence[str] | str] = []
    for function in found:
        rows.append(_cells(function, wide=True))
        rows.append(_opened(function))
    parts = [
        f'<p style="margin:4px 0">{escape(_summary(found))}</p>',
        html_table(_NAMES, rows, left=3),
    ]
    known = programs_of(found)
    for title, by_cell in (("By cell", True), ("By line", False)):
        sums = totals(known, by_cell)[:_TOTALS]
        if sums:
            columns = ("cell" if by_cell else "line", "programs", "compile time")
            cells = [(where(t.place, by_cell), str(t.programs), _time(t.seconds)) for t in sums]
            parts.append(details(title, html_table(columns, cells)))
    return "".join(parts)


def _cells(function: FunctionInfo, wide: bool = False) -> tuple[str, ...]:
    """A row of the table."""
    known = function.programs
    counted = function.kind != "eager" or function.calls or events.recording()
    memory, flops = most(function, peak), most(function, lambda p: p.flops)
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
    known = programs_of(found)
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
    parts += [f"{stats.evicted} evicted (`program_memory`)"] if stats.evicted else []
    if any(f.kind == "jax.jit" for f in found):
        parts.append("JAX does not report how often a jax.jit runs")
    return "; ".join(parts)


def _why(function: FunctionInfo) -> list[str]:
    """Why it was traced again: the latest reasons, each with advice."""
    shown = []
    if len(function.retraces) > _REASONS:
        shown.append(f"traced again {len(function.retraces)} times, the last {_REASONS}:")
    for retrace, advice in _advised(function.retraces[-_REASONS:]):
        shown.append(f"traced again: {', '.join(retrace.what)}")
        shown += [f"  {one}" for one in advice]
    return shown


def _advised(retraces: Iterable[Retrace]) -> list[tuple[Retrace, list[str]]]:
    """Each retrace with its advice, without repetitions."""
    said: dict[str, None] = {"": None}
    found = []
    for retrace in retraces:
        found.append((retrace, [a for a in dict.fromkeys(retrace.advice) if a not in said]))
        said |= dict.fromkeys(retrace.advice)
    return found


def _opened(function: FunctionInfo) -> str:
    """The details under a function's row: why it was traced again, and its programs."""
    shown = function.programs[-MOST_PROGRAMS:]
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
        items = "".join(_reason(*r) for r in _advised(function.retraces[-_PAGE_REASONS:]))
        count = len(function.retraces)
        title = "Traced again once" if count == 1 else f"Traced again {count} times"
        parts.append(
            details(f"{title}: {', '.join(function.retraces[-1].what)}", f"<ol>{items}</ol>")
        )
    count = len(function.programs)
    parts.append(details(f"{count} program{'s'[: count != 1]}", inner))
    return "".join(parts)


def _reason(retrace: Retrace, advice: list[str]) -> str:
    said = "".join(f'<br><span style="opacity:0.7">{escape(a)}</span>' for a in advice)
    at = f" — {escape(where(retrace.place))}" if retrace.place else ""
    return f'<li value="{retrace.nth}">{escape(", ".join(retrace.what))}{at}{said}</li>'


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


def _total(total: Total) -> str:
    return f"{where(total.place, True)} {_time(total.seconds)}"


def _time(seconds: float) -> str:
    return duration(seconds * 1e9)


def peak(info: ProgramInfo) -> int | None:
    """The peak memory of one run, in bytes."""
    memory = info.memory()
    return None if memory is None else memory.peak


def most(function: FunctionInfo, ask: Callable[[ProgramInfo], int | None]) -> int | None:
    """The maximum over the programs of a function; None if no value is known."""
    return max((n for p in function.programs if (n := ask(p)) is not None), default=None)


def programs_of(found: Iterable[FunctionInfo]) -> list[ProgramInfo]:
    """All programs of these functions."""
    return [p for f in found for p in f.programs]
