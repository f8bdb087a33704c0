"""A page as HTML without a script. Its inline style works on light and dark pages.

Sections with a title fold (`<details>`). The first of them is open. Everything that comes from a user is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

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
    ascending_gap,
    cell,
    filtered,
    is_numeric,
)
from .page_text import shortened

ROWS = 200  # of a table
_LONGEST = 200  # characters of a value

# The style of a notebook would give all columns the same width and align them at the right.
_TABLE = "table-layout:auto;border-collapse:collapse;text-align:left;font-size:13px;margin:4px 0"
_HEAD = (
    "padding:3px 14px 3px 0;font-weight:600;text-align:{};white-space:nowrap;vertical-align:bottom"
)
_CELL = "padding:3px 14px 3px 0;text-align:{};vertical-align:top"
_ROW = "background:none;border-top:1px solid #8884"
_SPAN = "padding:0 0 4px 14px;text-align:left"
_LINE = "padding:0 14px 0 0;text-align:{};vertical-align:top;white-space:nowrap"
_FIXED = "font-family:ui-monospace,Menlo,Consolas,monospace"
_NAME = f"{_CELL.format('left')};font-weight:600"
_DIM = "opacity:0.7"
_HEAT = "#3b82f6"


def page_html(page: Page) -> str:
    """The whole page."""
    heading = f"<b>{escape(page.title)}</b>" if page.title and page.facts else escape(page.title)
    head = " · ".join(part for part in (heading, *map(escape, page.facts)) if part)
    parts = [f'<p style="margin:4px 0">{text}</p>' for text in [head] if text]
    parts += [f'<p style="margin:4px 0">{_with_code(page.finding)}</p>'] if page.finding else []
    parts += [f'<p style="margin:4px 0">{escape(text)}</p>' for text in page.warnings]
    return "".join(parts) + sections_html(page.sections, page.filter or "", opened=True)


def _with_code(sentence: str) -> str:
    """A sentence as HTML; what stands between backticks is code."""
    pieces = enumerate(escape(sentence).split("`"))
    return "".join(f"<code>{text}</code>" if i % 2 else text for i, text in pieces)


def sections_html(sections: Sequence[Section], query: str = "", opened: bool = False) -> str:
    """Sections, one after the other. Sections with the same title are one part that folds."""
    parts: list[str] = []
    titles: dict[str, str] = {}
    for section in sections:
        if section.title:
            titles[section.title] = titles.get(section.title, "") + _section(section, query)
        else:
            parts.append(_section(section, query))
    drawn = {s.title for s in sections if isinstance(s, Chart | Table) and s.opened}
    for i, (title, inner) in enumerate(titles.items()):
        parts.append(details(title, inner, (opened and i == 0) or title in drawn) if inner else "")
    return "".join(parts)


def _section(section: Section, query: str) -> str:
    if isinstance(section, Facts):
        return _facts(section)
    if isinstance(section, Notes):
        return f"<ul>{''.join(map(_note, section.notes))}</ul>"
    if isinstance(section, Table):
        return _table(section, query)
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
    more = "".join(f'<br><span style="{_DIM}">{escape(text)}</span>' for text in note.more)
    return f"<li>{escape(note.text)}{more}</li>"


def _table(table: Table, query: str) -> str:
    matching = filtered(table, query)
    if not matching and not table.empty:
        return ""
    if not matching:
        message = f"No row contains {query!r}." if table.rows else table.empty
        return f'<p style="margin:4px 0;{_DIM}">{escape(message)}</p>'
    rows = enumerate(matching[:ROWS], 1)
    body = "".join(_row(row, table.columns, str(i) if table.numbered else "") for i, row in rows)
    more = len(matching) - ROWS
    notes = [f"and {more} more"] if more > 0 else []
    notes += [table.omitted] if table.omitted else []
    below = "".join(f'<p style="margin:4px 0;{_DIM}">{escape(text)}</p>' for text in notes)
    number = (Column("#", "count"),) if table.numbered else ()
    return _framed((*number, *table.columns), body) + below


def _row(row: Row, columns: Sequence[Column], number: str) -> str:
    cells = f'<td style="{_CELL.format("right")}">{number}</td>' if number else ""
    cells += "".join(
        f'<td style="{_CELL.format(_side(column))}">'
        f"{escape(shortened(cell(row, column), _LONGEST))}</td>"
        for column in columns
    )
    inner = sections_html(row.detail)
    width = len(columns) + bool(number)
    opened = (
        f'<tr style="background:none"><td colspan="{width}" style="{_SPAN}">{inner}</td></tr>'
        if inner
        else ""
    )
    return f'<tr style="{_ROW}">{cells}</tr>{opened}'


def _code(code: Code) -> str:
    body = []
    for i, row in enumerate(code.rows):
        if ascending_gap(code.rows, i):
            body.append(f'<tr><td colspan="{len(code.columns)}" style="{_DIM}">⋮</td></tr>')
        cells = "".join(_figure(row, column, code.heat) for column in code.columns[:-1])
        line = escape(shortened(cell(row, code.columns[-1]), _LONGEST)) or " "
        style = f"{_LINE.format('left')};{_FIXED};white-space:pre"
        body.append(f'<tr style="background:none">{cells}<td style="{style}">{line}</td></tr>')
    name = f'<div style="margin-top:6px"><b>{escape(code.name)}</b></div>'
    return name + _framed(code.columns, "".join(body))


def _figure(row: Row, column: Column, heat: str) -> str:
    share = getattr(row, column.key)
    bar = ""
    if column.key == heat and share:
        bar = f";background:linear-gradient(90deg,{_HEAT}55 {100 * share:.1f}%,transparent {100 * share:.1f}%)"
    text = escape(cell(row, column))
    return f'<td style="{_LINE.format(_side(column))}{bar}">{text}</td>'


def _framed(columns: Sequence[Column], body: str) -> str:
    head = "".join(
        f'<th scope="col" style="{_HEAD.format(_side(column))}">{escape(column.label)}</th>'
        for column in columns
    )
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}">'
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
