"""The views of `%jax cluster`: the outputs of a cell's processes side by side, and the list of processes.

The outputs of failed processes come first, with their tracebacks. A page has up to four processes in a row. A terminal
has them one below the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Annotated, Literal

from .page import Column, Page, Row, Table, columns
from .units import counted
from .view import PageView, View

State = Literal["running", "done", "failed", "interrupted", "ended"]

_IN_A_ROW = 4  # processes beside each other on a page
_LARGEST = 20_000  # characters of text of one process: a notebook saves them
_FIRST: tuple[State, ...] = ("failed", "ended")  # shown before the others

_TABLE = "table-layout:fixed;width:100%;border-collapse:collapse;text-align:left;font-size:13px"
_CELL = "vertical-align:top;text-align:left;padding:2px 8px 8px 0;overflow-x:auto"
_TEXT = "margin:0;font:12px/1.4 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;text-align:left"
_ERRORS = "border-left:3px solid #d33;padding-left:6px"
_PRINTED = "border-left:3px solid #b808;padding-left:6px"


@dataclass
class ProcessOutput:
    """The output of a cell in one process.

    Attributes:
        rank: the number of the process.
        state: "ended" if the process itself has ended.
        seconds: how long the cell ran, or has run so far.
        printed: what it wrote to standard output.
        warned: what it wrote to standard error.
        displayed: what it displayed, then the cell's value; for each, text or base64 data by media type.
        error: the exception in one line.
        traceback: the exception with the lines that raised it.
    """

    rank: int
    state: State = "running"
    seconds: float = 0.0
    printed: str = ""
    warned: str = ""
    displayed: list[dict[str, str]] = field(default_factory=list)
    error: str = ""
    traceback: str = ""

    @property
    def heading(self) -> str:
        """The process and its state.

        Example:
            >>> ProcessOutput(1, "done", 0.512).heading
            'process 1 · done in 0.5 s'
        """
        took = {
            "running": "running for",
            "interrupted": "interrupted after",
            "ended": "ended after",
        }
        return (
            f"process {self.rank} · {took.get(self.state, f'{self.state} in')} {self.seconds:.1f} s"
        )


class OutputsView(View):
    """The outputs of a cell that ran in several processes.

    Args:
        processes: the output of each process.
        notes: sentences above the outputs.
    """

    def __init__(self, processes: Sequence[ProcessOutput], notes: Sequence[str] = ()):
        self.notes = list(notes)
        self.processes = sorted(processes, key=lambda p: (p.state not in _FIRST, p.rank))

    @property
    def summary(self) -> str:
        """The progress of the processes in one line."""
        running = [p for p in self.processes if p.state == "running"]
        n = len(self.processes)
        seconds = max(p.seconds for p in self.processes)
        last = (running or self.processes)[0]
        said = (last.printed.strip().splitlines() or [""])[-1]
        line = f"{counted(n, 'process', 'processes')}: {n - len(running)} done, {seconds:.0f} s"
        return f"{line}; process {last.rank}: {said}"[:100] if said else line

    def text(self) -> str:
        return "\n".join([*self.notes, *map(_text, self.processes)])

    def html(self) -> str:
        notes = "".join(f'<p style="margin:4px 0">{escape(note)}</p>' for note in self.notes)
        rows = [self.processes[i : i + _IN_A_ROW] for i in range(0, len(self.processes), _IN_A_ROW)]
        body = "".join(f"<tr>{''.join(map(_html, row))}</tr>" for row in rows)
        return f'{notes}<table style="{_TABLE}">{body}</table>'


def _text(process: ProcessOutput) -> str:
    values = [data.get("text/plain", f"({', '.join(data)})") for data in process.displayed]
    parts = (process.traceback, process.printed, process.warned, *values)
    lines = [f"── {process.heading} "]
    lines[0] += "─" * max(0, 60 - len(lines[0]))
    return "\n".join(lines + [_bounded(part.rstrip("\n")) for part in parts if part])


def _html(process: ProcessOutput) -> str:
    parts = [
        _pre(text, style)
        for text, style in (
            (process.traceback, _ERRORS),
            (process.printed, ""),
            (process.warned, _PRINTED),
        )
        if text
    ]
    parts += map(_displayed, process.displayed)
    return f'<td style="{_CELL}"><b>{escape(process.heading)}</b>{"".join(parts)}</td>'


def _displayed(data: dict[str, str]) -> str:
    """A displayed value, in the richest form that a page without scripts can show."""
    for form in ("text/html", "image/svg+xml"):
        if form in data:
            return f'<div style="overflow-x:auto">{data[form]}</div>'
    for form in ("image/png", "image/jpeg"):
        if form in data:
            alt = escape(data.get("text/plain", "picture"))
            return f'<img alt="{alt}" style="max-width:100%" src="data:{form};base64,{escape(data[form])}">'
    return _pre(data.get("text/plain", ", ".join(data)), "")


def _pre(text: str, style: str) -> str:
    return f'<pre style="{_TEXT};{style}">{escape(_bounded(text))}</pre>'


def _bounded(text: str) -> str:
    """A text without its middle if it is very long."""
    if len(text) <= _LARGEST:
        return text
    half = _LARGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


@dataclass(frozen=True)
class ProcessRow(Row):
    """A process of the cluster."""

    rank: Annotated[int, Column("process", "count")]
    host: Annotated[str, Column("machine")]
    pid: Annotated[str, Column("pid")]
    devices: Annotated[str, Column("devices", help="this process's own devices")]
    state: Annotated[str, Column("state")]


class ClusterView(PageView):
    """The processes of the cluster at one moment."""

    kind = ""

    def __init__(self, title: str, rows: Sequence[ProcessRow]):
        self.title, self.rows = title, rows

    def page(self) -> Page:
        table = Table("processes", columns(ProcessRow, self.rows), self.rows, name="Processes")
        return Page(self.title, sections=(table,) if self.rows else ())
