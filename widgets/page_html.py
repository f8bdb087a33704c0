"""A page as HTML without a script. Its inline style works on light and dark pages.

Sections with a title fold (`<details>`). The first of them is open. Everything that comes from a user is escaped.

A notebook saves the page, so its size is bounded (`saved.py`): a long table keeps only its most important rows. GitHub
and a notebook that is not trusted remove the style. So code is in a `<pre>`, in which it keeps its indentation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import NamedTuple

from .page import (
    Chart,
    Code,
    Column,
    Facts,
    Note,
    Notes,
    Page,
    Row,
    Section,
    Table,
    cell,
    filtered,
    heaviest,
    is_numeric,
    shown_lines,
)
from .page_text import code_lines, shortened
from .saved import fitting


class Room(NamedTuple):
    """How much of a table is shown: the number of rows, and of rows that open (with as many rows inside)."""

    rows: int
    details: int


_MOST = Room(200, 200)
_LESS = tuple(Room(200, n) for n in (100, 50, 25, 12, 8, 5, 3, 1)) + tuple(
    Room(n, 1) for n in (150, 100, 60, 30, 15)
)
_LINES = 100  # of code; the page shows all of it on request
_WIDTH = 110  # columns of code and its figures
_LONGEST = 200  # characters of a value

# The style of a notebook would give all columns the same width and align them at the right.
_TABLE = "table-layout:auto;border-collapse:collapse;text-align:left;font-size:13px;margin:4px 0"
_HEAD = "text-align:{}"
_ROW = "background:none;border-top:1px solid #8884"
_CELL = "text-align:{}"
_SPAN = "padding:0 0 4px 14px;text-align:left"
_CODE = "margin:2px 0;font:12px/1.4 ui-monospace,Menlo,Consolas,monospace;white-space:pre;text-align:left"
_NAME = f"{_CELL.format('left')};font-weight:600"
_PARAGRAPH = "margin:4px 0;overflow-wrap:anywhere"
_DIM = "opacity:0.7"
_SHORT = 20  # characters of a text that stays on one line
# The pieces of a longer one: they end after a space or punctuation, or within a word that is longer than that.
_END = r"(?:(?<=[\s_.,:=/(){}\[\]])(?![\s_.,:=/(){}\[\]])|$)"
_PIECE = re.compile(rf"(?s:.{{1,{_SHORT}}}{_END}|.{{1,{_SHORT}}})")


def page_html(page: Page, bounded: bool = True) -> str:
    """The whole page, with fewer rows if it would be too large to save.

    Args:
        page: what to draw.
        bounded: False for a file, which may have any size.
    """
    return fitting(partial(_page, page), (_MOST, *_LESS) if bounded else (_MOST,))


def _page(page: Page, room: Room) -> str:
    heading = f"<b>{escape(page.title)}</b>" if page.title and page.facts else escape(page.title)
    head = " · ".join(part for part in (heading, *map(escape, page.facts)) if part)
    texts = [head, _with_code(page.finding), *map(escape, page.warnings)]
    parts = [f'<p style="{_PARAGRAPH}">{text}</p>' for text in texts if text]
    return "".join(parts) + sections_html(page.sections, page.filter or "", True, room)


def _with_code(sentence: str) -> str:
    """A sentence as HTML; text between backticks is code, unless their number is odd."""
    if sentence.count("`") % 2:
        return escape(sentence)
    pieces = enumerate(escape(sentence).split("`"))
    return "".join(f"<code>{text}</code>" if i % 2 else text for i, text in pieces)


def sections_html(
    sections: Sequence[Section], query: str = "", opened: bool = False, room: Room = _MOST
) -> str:
    """Sections, one after the other. Sections with the same title are one part that folds."""
    parts: list[str] = []
    titles: dict[str, str] = {}
    for section in sections:
        if section.title:
            titles[section.title] = titles.get(section.title, "") + _section(section, query, room)
        else:
            parts.append(_section(section, query, room))
    drawn = {s.title for s in sections if isinstance(s, Chart | Table) and s.opened}
    for i, (title, inner) in enumerate(titles.items()):
        parts.append(details(title, inner, (opened and i == 0) or title in drawn) if inner else "")
    return "".join(parts)


def _section(section: Section, query: str, room: Room) -> str:
    if isinstance(section, Facts):
        return _facts(section)
    if isinstance(section, Notes):
        return f"<ul>{''.join(map(_note, section.notes))}</ul>"
    if isinstance(section, Table):
        return _table(section, query, room)
    if isinstance(section, Code):
        return _code(section)
    return section.html()


def _facts(section: Facts) -> str:
    rows = "".join(
        f'<tr style="{_ROW}"><th scope="row" style="{_NAME}">{escape(fact.name)}</th>'
        f'<td style="{_CELL.format("left")}">{"<br>".join(map(escape, fact.lines))}</td></tr>'
        for fact in section.facts
    )
    return f'<table style="{_TABLE}">{rows}</table>'


def _note(note: Note) -> str:
    more = "".join(f'<br><span style="{_DIM}">{_with_code(text)}</span>' for text in note.more)
    return f"<li>{_with_code(note.text)}{more}</li>"


def _table(table: Table, query: str, room: Room) -> str:
    matching = filtered(table, query)
    if not matching and not table.empty:
        return ""
    if not matching:
        message = f"No row contains {query!r}." if table.rows else table.empty
        return f'<p style="margin:4px 0;{_DIM}">{escape(message)}</p>'
    rows = heaviest(table, matching, room.rows)
    opening = {id(r) for r in heaviest(table, [r for r in rows if r.detail], room.details)}
    body = "".join(
        _row(
            row,
            table.columns,
            str(i) if table.numbered else "",
            room if id(row) in opening else None,
        )
        for i, row in enumerate(rows, 1)
    )
    more = len(matching) - len(rows)
    notes = [f"and {more} more: the live view has them"] if more > 0 else []
    notes += [table.omitted] if table.omitted else []
    below = "".join(f'<p style="margin:4px 0;{_DIM}">{escape(text)}</p>' for text in notes)
    number = (Column("#", "count"),) if table.numbered else ()
    return _framed((*number, *table.columns), body) + below


def _row(row: Row, columns: Sequence[Column], number: str, room: Room | None) -> str:
    """A row; with `room`, also the sections that open below it."""
    cells = f'<td style="{_CELL.format("right")}">{number}</td>' if number else ""
    cells += "".join(_cell(row, column) for column in columns)
    inner = ""
    if room is not None:
        within = Room(room.details, room.details)
        inner = sections_html(row.detail, opened=row.opened, room=within)
    width = len(columns) + bool(number)
    opened = (
        f'<tr style="background:none"><td colspan="{width}" style="{_SPAN}">{inner}</td></tr>'
        if inner
        else ""
    )
    return f'<tr style="{_ROW}">{cells}</tr>{opened}'


def _cell(row: Row, column: Column) -> str:
    """A cell. A long text gives way, so that it does not move the figures beside it out of sight."""
    text = shortened(cell(row, column), _LONGEST)
    # An attribute is shorter than a style, and spaces that do not break would be copied with code.
    kept = " nowrap" if len(text) <= _SHORT else ""
    return f'<td{kept} style="{_CELL.format(_side(column))}">{breakable(text)}</td>'


def breakable(text: str) -> str:
    """A text as HTML that a narrow column can break.

    Example:
        >>> from jaxtorch.widgets.page_html import breakable
        >>> breakable("first_step"), breakable("cross_entropy_of_every_batch")
        ('first_step', 'cross_entropy_of_<wbr>every_batch')
    """
    if len(text) <= _SHORT:
        return escape(text)
    return "<wbr>".join(map(escape, _PIECE.findall(text)))


def _code(code: Code) -> str:
    shown = shown_lines(code)
    every = shown_lines(code, every=True)
    html = _lines(code, shown)
    if len(shown) < len(every) <= _LINES:
        html += details(f"all {len(every)} lines", _lines(code, every))
    return html


def _lines(code: Code, rows: Sequence[Row]) -> str:
    head, *lines = map(escape, code_lines(code, rows, _WIDTH))
    text = "\n".join([f"<b>{head}</b>", *lines])
    return f'<div style="overflow-x:auto"><pre style="{_CODE}">{text}</pre></div>'


def _framed(columns: Sequence[Column], body: str) -> str:
    head = "".join(
        f'<th scope="col" style="{_HEAD.format(_side(column))}">{escape(column.label)}</th>'
        for column in columns
    )
    return (
        f'<div style="overflow-x:auto"><table cellpadding="4" style="{_TABLE}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _side(column: Column) -> str:
    return "right" if is_numeric(column) else "left"


def details(summary: str, inner: str, opened: bool = False) -> str:
    """A part that folds. `summary` is text, `inner` is HTML."""
    return (
        f'<details{" open" if opened else ""}><summary style="cursor:pointer">{escape(summary)}</summary>'
        f"{inner}</details>"
    )
