"""The page of a program: the source code with costs beside the listings, linked line by line, and tables below them.

The page needs no script: links are anchors, and `<details>` folds long parts. A notebook saves the page. So listings
are `<pre>` and not tables, because the inline styles of table cells would take most of the space.
"""

from __future__ import annotations

import itertools
from html import escape

from jaxtorch.insight.hlo.listing import STAGES, Listing
from jaxtorch.insight.hlo.reading import Reading, Source
from jaxtorch.insight.hlo.scopes import scope_of

from .hlo_data import tables
from .hlo_format import (
    COLUMNS,
    TITLES,
    cells,
    chosen_lines,
    heading,
    shown_line,
    source_title,
)
from .page_html import page_html, sections_html

_MOST = 400  # lines of a listing
# A page of more instructions has only one listing, because the others would take seconds.
_LARGE = 5000
_GUTTER = 8  # columns for the line numbers before a line

_PANE = (
    "flex:1 1 420px;min-width:0;max-height:480px;overflow:auto;border:1px solid #8884;padding:4px"
)
_TEXT = "margin:2px 0;font:12px/1.4 monospace;white-space:pre;overflow:visible"
# The style of a notebook would give all columns the same width.
_TABLE = "table-layout:auto;border-collapse:collapse;font-size:12px;line-height:1.4;width:100%"
_HEAD = (
    "padding:2px 6px;border-bottom:1px solid #8884;font-weight:600;white-space:nowrap;text-align:"
)
_NUMBER = "text-align:right;padding:0 6px;vertical-align:top;white-space:nowrap"
_CODE = (
    "font-size:12px;text-align:left;padding:0 6px;vertical-align:top;font-family:monospace;"
    "white-space:pre-wrap;overflow-wrap:anywhere;min-width:160px"
)
_SHORT = {"jaxpr": "jaxpr", "stablehlo": "stable", "hlo": "hlo"}
_pages = itertools.count(1)


class Page:
    """One page. Its anchors contain a page number, because a notebook may hold several pages."""

    def __init__(self, reading: Reading, stage: str, line: int | None, grep: str):
        self.reading, self.stage = reading, stage
        self._number = next(_pages)
        self._files: dict[str, int] = {}  # file -> its number; anchors must not contain names
        large = len(reading.module.instructions) > _LARGE
        stages = [stage, *(s for s in reversed(STAGES) if s != stage and not large)]
        self._chosen = {s: chosen_lines(reading.listing(s), line, grep) for s in stages}

    def html(self) -> str:
        """The whole page."""
        texts = "".join(map(self._text, self._chosen))
        return (
            f'<div style="font-size:13px">{page_html(heading(self.reading))}'
            '<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">'
            f'<div style="{_PANE}">{self._code()}</div><div style="{_PANE}">{texts}</div></div>'
            f"{sections_html(tables(self.reading, []))}</div>"
        )

    # -- the code -------------------------------------------------------------------------------------------------

    def _code(self) -> str:
        rows = {
            (r.location.file, r.location.line): r
            for r in self.reading.lines
            if r.location is not None
        }
        total = self.reading.costs.total
        first = {stage: self._first_lines(stage) for stage in self._chosen}
        out = []
        for source in self.reading.texts():
            out.append(_head(source))
            for number, code in enumerate(source.lines, source.first):
                key = source.file, number
                links = " ".join(
                    f'<a href="#{self._anchor(stage, first[stage][key])}" title="{TITLES[stage]}">{name}</a>'
                    for stage, name in _SHORT.items()
                    if key in first.get(stage, ())
                )
                out.append(
                    f'<tr id="{self._source_anchor(key)}"><td style="{_NUMBER};opacity:.6">{number}</td>'
                    f'<td style="{_CODE}">{escape(code) or "&nbsp;"}</td>'
                    f'{_numbers(cells(rows.get(key), total))}<td style="{_NUMBER}">{links}</td></tr>'
                )
        unattributed = next((r for r in self.reading.lines if r.location is None), None)
        if unattributed is not None:
            figures = _numbers(cells(unattributed, total))
            out.append(f"<tr><td></td><td><i>no line of your code</i></td>{figures}<td></td></tr>")
        return f'<table style="{_TABLE}">{"".join(out)}</table>'

    def _first_lines(self, stage: str) -> dict[tuple[str, int], int]:
        """For each line of user code, the first visible line of a listing that comes from it."""
        listing = self.reading.listing(stage)
        first_lines: dict[tuple[str, int], int] = {}
        for i in self._chosen[stage][0][:_MOST]:
            for location in listing.locations[i]:
                first_lines.setdefault((location.file, location.line), i)
        return first_lines

    # -- the texts ------------------------------------------------------------------------------------------------

    def _text(self, stage: str) -> str:
        listing = self.reading.listing(stage)
        if not listing.lines:
            return f"<details><summary>{TITLES[stage]}: no longer available</summary></details>"
        chosen, why = self._chosen[stage]
        note = f"{len(listing.lines)} lines" + (f"; {len(chosen)} {why}" if why else "")
        if len(chosen) > _MOST:
            note += f"; {_MOST} of them here"
        lines = "".join(self._line(listing, i) for i in chosen[:_MOST])
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
        line = f"{' ' * (_GUTTER - width)}{links} {escape(shown_line(listing, i))}\n"
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


def _head(source: Source) -> str:
    columns = "".join(f'<th scope="col" style="{_HEAD}right">{name}</th>' for name in COLUMNS)
    return (
        f'<tr><th colspan="2" scope="col" style="{_HEAD}left">{escape(source_title(source))}</th>'
        f'{columns}<th scope="col" style="{_HEAD}left">became</th></tr>'
    )


def _numbers(figures: tuple[str, ...]) -> str:
    return "".join(f'<td style="{_NUMBER}">{figure}</td>' for figure in figures)
