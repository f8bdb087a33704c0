"""A page as text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from textwrap import wrap

from .page import (
    Chart,
    Code,
    Facts,
    Notes,
    Page,
    Row,
    Section,
    Table,
    ascending_gap,
    cell,
    filtered,
    is_numeric,
    shown_lines,
)

WIDTH = 120
_SENTENCE = 100

# Paths and options have hyphens, and are copied from the text.
_wrapped = partial(wrap, width=_SENTENCE, break_on_hyphens=False)


def page_text(page: Page) -> str:
    """The whole page. Empty lines separate the sections."""
    facts = ", ".join(page.facts)
    head = [": ".join(part for part in (page.title, facts) if part)]
    if len(head[0]) > _SENTENCE:
        head = [page.title, *_wrapped(facts)]
    warnings = [line for warning in page.warnings for line in _wrapped(warning)]
    finding = _wrapped(page.finding)
    blocks = [[line for line in (*head, *finding, *warnings) if line]]
    blocks += [_section(s, i > 0, page.filter or "") for i, s in enumerate(page.sections)]
    lines = "\n\n".join("\n".join(block) for block in blocks if block).split("\n")
    return "\n".join(shortened(line, WIDTH) for line in lines)


def _section(section: Section, titled: bool, query: str) -> list[str]:
    if isinstance(section, Facts):
        lines = _facts(section)
    elif isinstance(section, Notes):
        return _notes(section, "")
    elif isinstance(section, Table):
        lines = _table(section, query, not titled)
    elif isinstance(section, Code):
        return _code(section) if section.in_text else []
    elif isinstance(section, Chart):
        return section.text().splitlines()
    return [section.title, *lines] if titled and section.title and lines else lines


def _facts(section: Facts) -> list[str]:
    width = max((len(fact.name) for fact in section.facts), default=0)
    return [
        f"{fact.name if i == 0 else '':{width}}  {line}"
        for fact in section.facts
        for i, line in enumerate(fact.lines)
    ]


def _notes(section: Notes, indent: str) -> list[str]:
    if not section.text_most:
        return []
    lines = []
    shown = section.notes[-section.text_most :]
    if len(section.notes) > len(shown):
        lines.append(f"{indent}{section.title}, the last {len(shown)}:")
    for note in shown:
        lines += _wrapped(note.text, initial_indent=indent, subsequent_indent=f"{indent}  ")
        for more in note.more:
            deeper = f"{indent}  "
            lines += _wrapped(more, initial_indent=deeper, subsequent_indent=deeper)
    return lines


def _table(table: Table, query: str, first: bool) -> list[str]:
    if not table.text_rows:
        return []
    matching = filtered(table, query)
    if not table.rows and table.title and not first:
        return []
    if not matching:
        return [f"No row contains {query!r}." if table.rows else table.empty]
    rows = matching[: table.text_rows]
    head, *lines = _aligned(table, rows, table.numbered)
    shown = [head]
    for row, line in zip(rows, lines, strict=True):
        shown.append(line)
        for section in row.detail:
            if isinstance(section, Notes):
                shown += _notes(section, "    ")
    left = len(matching) - len(rows)
    more = [f"and {left} more"] if left else []
    return [*shown, *more, *([table.omitted] if table.omitted else [])]


def _code(code: Code) -> list[str]:
    head, *lines = code_lines(code, shown_lines(code))
    return [head, "-" * len(head), *lines]


def code_lines(code: Code, rows: Sequence[Row], width: int = WIDTH) -> list[str]:
    """The header and the lines of code, with their figures at the right, which take at most half of the width."""
    texts = [f"{row.id:>4}  {cell(row, code.columns[0]).expandtabs(4)}" for row in rows]
    longest = max(map(len, (*texts, code.name)), default=0)
    figures = _figures(code, rows)
    while len(figures) > 1 and width - _length(figures) < min(longest, width // 2):
        figures.pop()
    room = min(longest, width - _length(figures))
    lines = []
    for i, text in enumerate([code.name, *texts]):
        if i and ascending_gap(rows, i - 1):
            lines.append("   ⋮")
        values = "  ".join(figure[i] for figure in figures)
        lines.append(f"{shortened(text, room):{room}}  {values}".rstrip())
    return lines


def _length(figures: list[list[str]]) -> int:
    return sum(2 + len(figure[0]) for figure in figures)


def _figures(code: Code, rows: Sequence[Row]) -> list[list[str]]:
    """The figures in columns: in each, the heading and the values, all of one length. A share has a bar beside it."""
    columns = []
    for column in code.columns[1:]:
        texts = [column.label, *(cell(row, column) for row in rows)]
        texts = [text.rjust(max(map(len, texts))) for text in texts]
        if column.key == code.heat:
            bars = ["", *(bar(getattr(row, column.key) or 0.0) for row in rows)]
            texts = [f"{text} {drawn:{_BAR}}" for text, drawn in zip(texts, bars, strict=True)]
        columns.append(texts)
    return columns


_BAR = 8  # the length of a whole


def bar(share: float) -> str:
    """A share as a bar.

    Example:
        >>> from jaxtorch.widgets.page_text import bar
        >>> bar(1.0), bar(0.3), bar(0.001), bar(0.0)
        ('████████', '██▍', '▏', '')
    """
    eighths = max(round(share * _BAR * 8), int(share > 0))
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def _aligned(section: Table | Code, rows: Sequence[Row], numbered: bool = False) -> list[str]:
    """The header and the rows, in columns."""
    columns = [column for column in section.columns if column.text]
    table = [["#"] * numbered + [column.label for column in columns]]
    for i, row in enumerate(rows, 1):
        cells = [shortened(cell(row, c), c.most) if c.most else cell(row, c) for c in columns]
        table.append([str(i)] * numbered + cells)
    return aligned(table, [True] * numbered + [is_numeric(column) for column in columns])


def aligned(table: list[list[str]], right: list[bool]) -> list[str]:
    """The lines of a table with aligned columns. `right` chooses the columns that are aligned at the right.

    Example:
        >>> from jaxtorch.widgets.page_text import aligned
        >>> aligned([["name", "calls"], ["loss", "7"], ["step", "120"]], [False, True])
        ['name  calls', 'loss      7', 'step    120']
    """
    widths = [max(len(text) for text in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            text.rjust(width) if at_right else text.ljust(width)
            for text, width, at_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def shortened(text: str, width: int) -> str:
    """A text cut to at most this width.

    Example:
        >>> from jaxtorch.widgets.page_text import shortened
        >>> shortened("cross_entropy_loss", 8)
        'cross_e…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"
