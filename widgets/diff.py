"""Two programs side by side, with their differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from jaxtorch.insight.hlo.diff import Diff, Hunk, compare
from jaxtorch.insight.hlo.listing import Listing, short, without_metadata
from jaxtorch.insight.hlo.reading import Reading

from .hlo_format import TITLES, program_title
from .page_text import shortened
from .protocol import Data, plain
from .saved import fitting
from .units import amount, size
from .view import View

_CONTEXT = 3  # lines around a difference
_MOST = (600, 400, 250, 150, 80, 40)  # lines that a page shows: the first that is small enough
_LONGEST = 240  # characters of a line
_TEXT = (
    "margin:4px 0;max-height:480px;overflow:auto;font:12px/1.4 ui-monospace,Menlo,Consolas,monospace;"
    "white-space:pre;text-align:left"
)
_COLOURS = {"-": "background:#f003", "+": "background:#0a03"}


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
        out += [
            f"{sign} {line}".rstrip() if sign != "⋯" else "    ⋯"
            for sign, line in self._differing()
        ]
        return "\n".join(out)

    def html(self) -> str:
        head = "".join(
            f"<b>{sign} {escape(program_title(reading.program))}</b>\n"
            for sign, reading in (("-", self.first), ("+", self.second))
        )
        return fitting(
            lambda most: (
                f'<div style="font-size:13px">{escape(self._summary())}'
                f'<pre style="{_TEXT}">{head}{"".join(self._rows(most))}</pre></div>'
            ),
            _MOST,
        )

    def _rows(self, most: int) -> Iterator[str]:
        """At most this number of lines that differ, with some context around them."""
        lines = list(self._differing())
        for sign, line in lines[:most]:
            text = f"{sign} {escape(shortened(line, _LONGEST))}\n"
            yield f'<span style="{_COLOURS[sign]}">{text}</span>' if sign in _COLOURS else text
        if len(lines) > most:
            yield f"… and {len(lines) - most} more lines: the live view has them"

    def _differing(self) -> Iterator[tuple[str, str]]:
        """The lines to show: each with "-", "+" or " ". A gap has "⋯"."""
        for hunk in self._hunks_in_context():
            if hunk is None:
                yield "⋯", ""
                continue
            one, two = self._lines(hunk)
            if hunk.same:
                yield from ((" ", line) for line in two)
            else:
                yield from (("-", line) for line in one)
                yield from (("+", line) for line in two)

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
        ones, twos = [first[i] for i in hunk.first], [second[j] for j in hunk.second]
        if self.stage != "hlo":
            return ones, twos
        shown = [*map(short, ones)], [*map(short, twos)]
        if hunk.same or shown[0] != shown[1]:
            return shown
        # They differ in what is left out elsewhere.
        return [*map(without_metadata, ones)], [*map(without_metadata, twos)]


def _program(reading: Reading, listing: Listing) -> DiffText:
    shown = short if listing.stage == "hlo" else str
    text = "\n".join(map(shown, listing.lines))
    return DiffText(reading.program.id, program_title(reading.program), text)
