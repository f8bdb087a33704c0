"""Two programs side by side, with their differences."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from jaxtorch.insight.hlo.diff import Diff, Hunk, compare
from jaxtorch.insight.hlo.listing import Listing, short
from jaxtorch.insight.hlo.reading import Reading

from .hlo_format import TITLES, program_title
from .protocol import Data, plain
from .units import amount, size
from .view import View

_CONTEXT = 3  # lines around a difference
_STATIC = 600
# The style of a notebook would align the cells at the right.
_SIDE = (
    "text-align:left;width:50%;padding:0 6px;white-space:pre-wrap;overflow-wrap:anywhere;"
    "font-family:monospace;vertical-align:top"
)
_COLOURS = {"-": "background:#f003", "+": "background:#0a03", " ": ""}


class HunkLines(NamedTuple):
    """Zero-based line ranges of both texts. `same` is 1 if the lines are equal, and 0 if they differ."""

    same: int
    start: int
    stop: int
    start_second: int
    stop_second: int


@dataclass(frozen=True)
class DiffText:
    """One of two programs."""

    id: int
    title: str
    text: str


@dataclass(frozen=True)
class DiffData:
    """Two programs and their differences. The hunks cover both texts."""

    stage: str
    title: str
    summary: str
    first: DiffText
    second: DiffText
    hunks: list[HunkLines]


class DiffView(View):
    """Compares one representation of two programs."""

    kind = "diff"

    def __init__(self, first: Reading, second: Reading, stage: str = "hlo"):
        self.first, self.second, self.stage = first, second, stage
        self.diff: Diff = compare(first.listing(stage), second.listing(stage))

    def text(self) -> str:
        out = [
            f"--- {program_title(self.first.program)}",
            f"+++ {program_title(self.second.program)}",
            self._summary(),
        ]
        for hunk in self._hunks_in_context():
            if hunk is None:
                out.append("    ⋯")
                continue
            one, two = self._lines(hunk)
            if hunk.same:
                out += [f"  {line}" for line in two]
            else:
                out += [f"- {line}" for line in one] + [f"+ {line}" for line in two]
        return "\n".join(out)

    def html(self) -> str:
        rows: list[str] = []
        for hunk in self._hunks_in_context():
            if hunk is None:
                rows.append('<tr><td colspan="2" style="opacity:.6;padding:0 6px">⋯</td></tr>')
                continue
            one, two = self._lines(hunk)
            for i in range(max(len(one), len(two))):
                left = one[i] if i < len(one) else None
                right = two[i] if i < len(two) else None
                signs = ("", "") if hunk.same else ("-", "+")
                rows.append(f"<tr>{_side(left, signs[0])}{_side(right, signs[1])}</tr>")
        more = len(rows) - _STATIC
        if more > 0:
            rows = [*rows[:_STATIC], f'<tr><td colspan="2">{more} more rows</td></tr>']
        head = "".join(
            f'<th scope="col" style="text-align:left;padding:2px 6px">{escape(program_title(r.program))}</th>'
            for r in (self.first, self.second)
        )
        return (
            f'<div style="font-size:13px">{escape(self._summary())}'
            f'<div style="max-height:480px;overflow:auto"><table style="border-collapse:collapse;width:100%">'
            f"<tr>{head}</tr>{''.join(rows)}</table></div></div>"
        )

    def data(self) -> Data:
        return dict(plain(self.payload()))

    def payload(self) -> DiffData:
        """The data of the live form."""
        return DiffData(
            stage=self.stage,
            title=TITLES[self.stage],
            summary=self._summary(),
            first=_program(self.first, self.diff.first),
            second=_program(self.second, self.diff.second),
            hunks=[
                HunkLines(int(h.same), h.first.start, h.first.stop, h.second.start, h.second.stop)
                for h in self.diff.hunks
            ],
        )

    def _summary(self) -> str:
        diff = self.diff
        if not diff.removed and not diff.added:
            return f"{TITLES[self.stage]}: no difference except numbers and names ({len(diff.second.lines)} lines)"
        one, two = self.first.costs.total, self.second.costs.total
        return (
            f"{TITLES[self.stage]}: {diff.removed} lines removed, {diff.added} added; "
            f"{amount(one.flops)} -> {amount(two.flops)} FLOPs, {size(one.bytes)} -> {size(two.bytes)} moved"
        )

    def _hunks_in_context(self) -> list[Hunk | None]:
        """The hunks that differ, each with some context. None replaces lines that are left out."""
        out: list[Hunk | None] = []
        hunks = self.diff.hunks
        for index, hunk in enumerate(hunks):
            if not hunk.same:
                out.append(hunk)
                continue
            before = _CONTEXT if index else 0
            after = _CONTEXT if index + 1 < len(hunks) else 0
            if len(hunk.first) <= before + after:
                out.append(hunk)
                continue
            if before:
                out.append(Hunk(True, hunk.first[:before], hunk.second[:before]))
            out.append(None)
            if after:
                out.append(Hunk(True, hunk.first[-after:], hunk.second[-after:]))
        return out

    def _lines(self, hunk: Hunk) -> tuple[list[str], list[str]]:
        first, second = self.diff.first.lines, self.diff.second.lines
        shown = short if self.stage == "hlo" else str
        return [shown(first[i]) for i in hunk.first], [shown(second[j]) for j in hunk.second]


def _program(reading: Reading, listing: Listing) -> DiffText:
    shown = short if listing.stage == "hlo" else str
    text = "\n".join(map(shown, listing.lines))
    return DiffText(reading.program.id, program_title(reading.program), text)


def _side(line: str | None, sign: str) -> str:
    if line is None:
        return f'<td style="{_SIDE}"></td>'
    return f'<td style="{_SIDE};{_COLOURS[sign or " "]}">{sign}{escape(line) or "&nbsp;"}</td>'
