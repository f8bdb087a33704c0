"""The page of a program: the source code with its FLOPs beside the listings, linked line by line, and tables below.

The page needs no script: links are anchors, and `<details>` folds long parts. A notebook saves the page. So code and
listings are `<pre>` and not tables: the inline styles of table cells would take most of the space, and a page that
without the style (GitHub, or a notebook that is not trusted) keeps the indentation of a `<pre>`. For a large program,
the page has the start of each listing and the most expensive lines of code (`_ROOMS`).
"""

from __future__ import annotations

import itertools
from html import escape
from typing import NamedTuple

from jaxtorch.insight.hlo.listing import STAGES, Listing
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.hlo.scopes import scope_of

from .hlo_data import CostRow, tables
from .hlo_format import TITLES, chosen_lines, heading, shown_line, source_title
from .page_html import Room, page_html, sections_html
from .page_text import shortened
from .saved import fitting
from .units import amount


class _Room(NamedTuple):
    """How much of a program a page shows."""

    listing: int  # lines of the listing shown first
    others: int  # lines of each other listing
    code: int  # lines of code
    tables: Room


_ROOMS = tuple(
    _Room(listing, others, code, Room(rows, rows))
    for listing, others, code, rows in (
        (400, 400, 1000, 200),
        (400, 100, 400, 100),
        (250, 50, 250, 50),
        (150, 30, 150, 25),
        (80, 15, 80, 12),
        (40, 8, 40, 6),
        (15, 3, 15, 3),
    )
)
_LONGEST = 240  # characters of a line of a listing or of code
# A page of more instructions has only one listing, because the others would take seconds.
_LARGE = 5000
_GUTTER = 8  # columns for the line numbers before a line

_PANE = (
    "flex:1 1 420px;min-width:0;max-height:480px;overflow:auto;border:1px solid #8884;padding:4px"
)
_TEXT = "margin:2px 0;font:12px/1.4 monospace;white-space:pre;overflow:visible;text-align:left"
_WIDEST = 66  # columns of code, before its links
_SHORT = {"jaxpr": "jaxpr", "stablehlo": "stable", "hlo": "hlo"}
_pages = itertools.count(1)


class Page:
    """One page. Its anchors contain a page number, because a notebook may hold several pages."""

    def __init__(
        self, reading: Reading, stage: str, line: int | None, grep: str, costs: list[CostRow]
    ):
        self.reading, self.stage = reading, stage
        self._number = next(_pages)
        self._files: dict[str, int] = {}  # file -> its number; anchors must not contain names
        large = len(reading.module.instructions) > _LARGE
        stages = [stage, *(s for s in reversed(STAGES) if s != stage and not large)]
        self._chosen = {s: chosen_lines(reading.listing(s), line, grep) for s in stages}
        self._tables = tables(reading, costs)

    def html(self) -> str:
        """The page, small enough to save."""
        return fitting(self._drawn, _ROOMS)

    def _drawn(self, room: _Room) -> str:
        most = {s: room.listing if s == self.stage else room.others for s in self._chosen}
        texts = "".join(self._text(stage, n) for stage, n in most.items())
        return (
            f'<div style="font-size:13px">{page_html(heading(self.reading))}'
            '<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">'
            f'<div style="{_PANE}">{self._code(room.code, most)}</div><div style="{_PANE}">{texts}</div></div>'
            f"{sections_html(self._tables, room=room.tables)}</div>"
        )

    # -- the code -------------------------------------------------------------------------------------------------

    def _code(self, most: int, listed: dict[str, int]) -> str:
        """The code with its FLOPs: all lines, or the most expensive ones. `listed`: the lines of each listing."""
        rows = {
            (r.location.file, r.location.line): r
            for r in self.reading.lines
            if r.location is not None
        }
        first = {stage: self._first_lines(stage, n) for stage, n in listed.items()}
        chosen = self._costly(most)
        out = []
        for source in self.reading.texts():
            texts = [shortened(code.expandtabs(4), _LONGEST) for code in source.lines]
            width = min(_WIDEST, max(map(len, texts), default=0))
            lines = [
                f"<b>{'':4}{_flops('FLOPs')}{escape(source_title(source)):{width}}  became</b>"
            ]
            gap = False
            for number, code in enumerate(texts, source.first):
                key = source.file, number
                if chosen is not None and key not in chosen:
                    gap = True
                    continue
                if gap:
                    lines.append("   ⋯")
                    gap = False
                links = " ".join(
                    f'<a href="#{self._anchor(stage, first[stage][key])}" title="{TITLES[stage]}">{name}</a>'
                    for stage, name in _SHORT.items()
                    if key in first.get(stage, ())
                )
                flops = _flops(amount(rows[key].cost.flops) if key in rows else "")
                padded = escape(f"{code:{width}}") if key in rows or links else escape(code)
                lines.append(
                    f'<span id="{self._source_anchor(key)}">{number:4}{flops}{padded}  {links}</span>'.rstrip()
                )
            lines += ["   ⋯"] if gap else []
            out.append(f'<pre style="{_TEXT}">{chr(10).join(lines)}</pre>')
        unattributed = next((r for r in self.reading.lines if r.location is None), None)
        if unattributed is not None:
            flops = _flops(amount(unattributed.cost.flops))
            out.append(f'<pre style="{_TEXT}">    {flops}no line of your code</pre>')
        return "".join(out)

    def _costly(self, most: int) -> set[tuple[str, int]] | None:
        """The `most` most expensive lines; None if there are no more lines than that."""
        if sum(len(source.lines) for source in self.reading.texts()) <= most:
            return None
        rows = [row for row in self.reading.lines if row.location is not None]
        rows.sort(key=lambda row: (-row.cost.flops, -row.cost.bytes))
        return {(r.location.file, r.location.line) for r in rows[:most] if r.location is not None}

    def _first_lines(self, stage: str, most: int) -> dict[tuple[str, int], int]:
        """For each line of user code, the first visible line of a listing that comes from it."""
        listing = self.reading.listing(stage)
        first_lines: dict[tuple[str, int], int] = {}
        for i in self._chosen[stage][0][:most]:
            for location in listing.locations[i]:
                first_lines.setdefault((location.file, location.line), i)
        return first_lines

    # -- the texts ------------------------------------------------------------------------------------------------

    def _text(self, stage: str, most: int) -> str:
        listing = self.reading.listing(stage)
        if not listing.lines:
            return f"<details><summary>{TITLES[stage]}: no longer available</summary></details>"
        chosen, why = self._chosen[stage]
        note = f"{len(listing.lines)} lines" + (f"; {len(chosen)} {why}" if why else "")
        if len(chosen) > most:
            note += f"; {most} of them here"
        lines = "".join(self._line(listing, i) for i in chosen[:most])
        opened = " open" if stage == self.stage else ""
        return (
            f"<details{opened}><summary><b>{TITLES[stage]}</b>, {escape(note)}</summary>"
            f'<pre style="{_TEXT}">{lines}</pre></details>'
        )

    def _line(self, listing: Listing, i: int) -> str:
        """A line of a listing, preceded by links to the source lines that it comes from."""
        locations = listing.locations[i][:3]
        links = ",".join(
            f'<a href="#{self._source_anchor((p.file, p.line))}">{p.line}</a>' for p in locations
        )
        width = len(",".join(str(p.line) for p in locations))
        line = f"{' ' * (_GUTTER - width)}{links} {escape(shortened(shown_line(listing, i), _LONGEST))}\n"
        if not locations:
            return line
        number = listing.instructions[i] if listing.instructions else None
        path = (
            ()
            if number is None
            else scope_of(self.reading.module.instructions[number].op_name).path
        )
        title = f' title="{escape("/".join(path))}"' if path else ""
        return f'<span id="{self._anchor(listing.stage, i)}"{title}>{line}</span>'

    def _anchor(self, stage: str, line: int) -> str:
        return f"jaxtorch-{self._number}-{stage}-{line}"

    def _source_anchor(self, key: tuple[str, int]) -> str:
        file = self._files.setdefault(key[0], len(self._files))
        return f"jaxtorch-{self._number}-source-{file}-{key[1]}"


def _flops(figure: str) -> str:
    """The FLOPs, which stand before the code: a long line moves what follows it out of sight."""
    return f" {figure:>7}  "
