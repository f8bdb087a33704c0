"""Tables: aligned columns for a terminal, and HTML whose inline style works on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_TABLE = "border-collapse:collapse;text-align:left;font-size:13px;margin:4px 0"
_HEAD = (
    "padding:3px 14px 3px 0;font-weight:600;text-align:{};white-space:nowrap;vertical-align:bottom"
)
_CELL = "padding:3px 14px 3px 0;text-align:{};vertical-align:top;border-top:1px solid #8884"
_SPAN = "padding:0 0 4px 14px;text-align:left"  # a notebook's own style aligns at the right
_DIM = "opacity:0.7"


def text_table(names: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table: the header, then the rows. The first `left` columns are aligned left, the others right.

    Example:
        >>> from jaxtorch.widgets.tables import text_table
        >>> text_table(("name", "calls"), [("loss", "7"), ("step", "120")])
        ['name  calls', 'loss      7', 'step    120']
    """
    table = [list(names), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def html_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str] | str],
    left: int = 1,
    caption: str = "",
) -> str:
    """An HTML table. A row is either cells, as text, or HTML that spans all columns."""
    sides = ["left" if i < left else "right" for i in range(len(names))]
    head = "".join(
        f'<th scope="col" style="{_HEAD.format(side)}">{escape(name)}</th>'
        for name, side in zip(names, sides, strict=True)
    )
    body = []
    for row in rows:
        if isinstance(row, str):
            body.append(
                f'<tr style="background:none"><td colspan="{len(names)}" style="{_SPAN}">{row}</td></tr>'
            )
            continue
        cells = "".join(
            f'<td style="{_CELL.format(side)}">{escape(cell)}</td>'
            for cell, side in zip(row, sides, strict=True)
        )
        body.append(f'<tr style="background:none">{cells}</tr>')
    title = (
        f'<caption style="text-align:left;{_DIM}">{escape(caption)}</caption>' if caption else ""
    )
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}">{title}'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def details(summary: str, inner: str, opened: bool = False) -> str:
    """A collapsible section. `summary` is text, `inner` is HTML."""
    return (
        f'<details{" open" if opened else ""}><summary style="cursor:pointer">{escape(summary)}</summary>'
        f"{inner}</details>"
    )


def shortened(text: str, width: int) -> str:
    """A text cut to at most this width.

    Example:
        >>> from jaxtorch.widgets.tables import shortened
        >>> shortened("cross_entropy_loss", 8)
        'cross_e…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"
