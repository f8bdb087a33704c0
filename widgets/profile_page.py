"""The page of a profile: HTML with inline style and SVG, no script.

It shows bars that break down the time, the code with the share of each line, a flame graph of module paths as nested
bars, a timeline of the longest events, and tables. Everything that comes from a user is escaped. The colours work on
light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from jaxtorch.insight.profile.sources import where

from . import roofline
from .lines import is_estimate, source_code
from .page_html import page_html, sections_html
from .profile_data import Phases, heading, phases
from .timeline import timeline
from .units import amount, duration, share, size

if TYPE_CHECKING:
    from jaxtorch.insight.profile.sources import Source
    from jaxtorch.insight.profile.summary import Node, Profile, Time

FORWARD, BACKWARD, QUIET = "#3b82f6", "#f59e0b", "#8885"
_COLOURS = {
    "busy": FORWARD,
    "idle": QUIET,
    "compiling": "#a855f7",
    "launching": "#10b981",
    "transfers": "#ec4899",
    "waiting": "#8888",
    "Python": "#eab308",
}
_PAGE = "font-size:13px;line-height:1.45;max-width:1100px"
# A notebook's own style has columns of one width, whose cells wrap.
_TABLE = "table-layout:auto;border-collapse:collapse;font-size:12px;margin:4px 0"
_LEFT = "white-space:nowrap;text-align:left;padding:1px 14px 1px 0;vertical-align:top"
_RIGHT = (
    "white-space:nowrap;text-align:right;padding:1px 14px 1px 0;vertical-align:top;"
    "font-variant-numeric:tabular-nums"
)
_SUMMARY = "cursor:pointer;font-weight:600;margin:8px 0 2px"
_ROWS = 30


def page(profile: Profile, title: str, sources: list[Source]) -> str:
    """The whole page."""
    parts = [
        page_html(heading(profile, title)),
        _bars(profile),
        _details("Lines", _lines(profile, sources), True),
        _details("Modules", flame(profile), bool(profile.tree.children)),
        _details("Timeline", timeline(profile), True),
        _details("Operators", _operators(profile)),
        _details("Instructions", _instructions(profile)),
        _details("Roofline", _roofline(profile), True),
    ]
    return f'<div style="{_PAGE}">{"".join(parts)}</div>'


def _bars(profile: Profile) -> str:
    """The wall time broken down, for the device and for the thread that ran the code."""
    bars = "".join(_bar(group, profile.wall) for group in phases(profile))
    return f'<table style="border-collapse:collapse;width:100%;font-size:12px;margin:4px 0">{bars}</table>'


def _bar(group: Phases, whole: float) -> str:
    pieces, words = [], []
    for part in group.parts:
        colour = _COLOURS[part.name]
        percent = 100 * part.time / whole if whole else 0
        words.append(
            f'<span style="white-space:nowrap;margin-right:12px"><span style="display:inline-block;width:9px;'
            f'height:9px;background:{colour}"></span> {part.name} {duration(part.time)} '
            f"({share(part.time, whole)})</span>"
        )
        pieces.append(f'<div style="width:{percent:.2f}%;background:{colour};height:10px"></div>')
    return (
        f'<tr><th scope="row" style="{_LEFT};width:6em;font-weight:400">{group.who}</th><td style="text-align:left">'
        f'<div style="display:flex;width:100%">{"".join(pieces)}</div>{"".join(words)}</td></tr>'
    )


def _details(title: str, body: str, opened: bool = False) -> str:
    if not body:
        return ""
    return f'<details{" open" if opened else ""}><summary style="{_SUMMARY}">{title}</summary>{body}</details>'


def time_cell(time: Time) -> str:
    """A time, marked if it is inferred; the tooltip has forward and backward time."""
    mark = '<span title="inferred: split by estimated cost">~</span>' if is_estimate(time) else ""
    hint = f"forward {duration(time.forward)}, backward {duration(time.backward)}"
    return f'{mark}<span title="{hint}">{duration(time.total)}</span>'


def _lines(profile: Profile, sources: list[Source]) -> str:
    """The source code with the time of each line."""
    rest = profile.unattributed.total
    left = f"<div>{duration(rest)} ({share(rest, profile.device)}) belong to no line.</div>"
    return sections_html(source_code(profile, sources, "")) + (left if rest else "")


# -- modules -----------------------------------------------------------------------------------------------------


def flame(profile: Profile) -> str:
    """A flame graph of module paths: the width of a bar is its share, its submodules are below it."""
    if not profile.tree.children:
        return ""
    legend = (
        f'<div style="font-size:12px"><span style="color:{FORWARD}">■</span> forward '
        f'<span style="color:{BACKWARD}">■</span> backward</div>'
    )
    return legend + _flame(profile.tree, profile.device, 0)


def _flame(node: Node, whole: float, depth: int) -> str:
    if depth > 12 or not node.time.total:
        return ""
    back = 100 * node.time.backward / node.time.total
    label = escape(node.name)
    hint = escape(
        f"{node.name}: {duration(node.time.total)} ({share(node.time.total, whole)}), "
        f"backward {duration(node.time.backward)}, itself {duration(node.own.total)}",
        quote=True,
    )
    bar = (
        f'<div title="{hint}" style="background:linear-gradient(90deg,{FORWARD}66 {100 - back:.1f}%,{BACKWARD}66 '
        f"{100 - back:.1f}%);font-size:11px;line-height:16px;height:16px;margin:0 1px 1px 0;padding-left:3px;"
        f'overflow:hidden;white-space:nowrap;text-overflow:ellipsis;text-align:left">{label} '
        f'<span style="opacity:.7">{share(node.time.total, whole)}</span></div>'
    )
    inner = "".join(
        f'<div style="width:{100 * child.time.total / node.time.total:.3f}%;min-width:0">{below}</div>'
        for child in node.children
        if child.time.total > whole / 500 and (below := _flame(child, whole, depth + 1))
    )
    return bar + (f'<div style="display:flex;width:100%">{inner}</div>' if inner else "")


# -- tables ------------------------------------------------------------------------------------------------------


def _operators(profile: Profile) -> str:
    rows = [
        (
            time_cell(row.time),
            share(row.time.total, profile.device),
            f"{row.time.count:.0f}",
            amount(row.time.flops),
            size(row.time.bytes),
            escape(row.name),
        )
        for row in profile.operators[:_ROWS]
    ]
    return _rows(
        ("device", "share", "times", "ops", "bytes", "operator"), rows, len(profile.operators), 1
    )


def _instructions(profile: Profile) -> str:
    peak = profile.peak
    names = ["device", "share", "times", "ops/s", "bytes/s", "program", "instruction", "from"]
    if peak is not None:
        names.insert(5, "of the roof")
    rows = []
    for row in profile.instructions[:_ROWS]:
        time, seconds = row.time, row.time.total / 1e9
        rates = (amount(time.flops / seconds), size(time.bytes / seconds)) if seconds else ("", "")
        cells = [time_cell(time), share(time.total, profile.device), f"{time.count:.0f}", *rates]
        if peak is not None:
            reached = time.flops / seconds if seconds else 0.0
            roof = peak.roof(time.flops / time.bytes) if time.bytes else peak.flops
            cells.append(share(reached, roof) if reached else "")
        opcode = f' <span style="opacity:.6">{escape(row.opcode)}</span>' if row.opcode else ""
        cells += [
            escape(row.program),
            escape(row.instruction) + opcode,
            "<br>".join(escape(where(place)) for place in row.places[:3]),
        ]
        rows.append(cells)
    return _rows(names, rows, len(profile.instructions), 3)


def _roofline(profile: Profile) -> str:
    if profile.peak is None or not profile.roofline:
        return ""
    rows = [[escape(cell) for cell in row] for row in roofline.rows(profile)]
    table = _rows(roofline.NAMES, rows, len(profile.roofline), 2)
    return f"<div>{escape(roofline.heading(profile.peak))}</div>{roofline.drawing(profile)}{table}"


def _rows(names: Sequence[str], rows: Sequence[Sequence[str]], count: int, left: int) -> str:
    """A table whose last `left` columns are text, aligned left."""
    words = len(names) - left

    def style(i: int) -> str:
        return _LEFT if i >= words else _RIGHT

    head = "".join(
        f'<th scope="col" style="{style(i)};font-weight:400;opacity:.7">{name}</th>'
        for i, name in enumerate(names)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{style(i)}">{cell}</td>' for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    more = f"<div>and {count - len(rows)} more</div>" if count > len(rows) else ""
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )
