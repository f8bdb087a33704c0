"""The roofline plot: a table for a terminal, a drawing for a page.

Both axes are logarithmic. The x axis has operations per byte moved, the y axis operations per second. The roof rises
where memory bandwidth is the limit, and is flat where arithmetic is the limit. Each point is a source line. Its label
is the number of the line in the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Annotated

from jaxtorch.insight.profile.sources import line_label, text_of

from .page import Column, Row
from .units import amount, share

if TYPE_CHECKING:
    from jaxtorch.insight.profile.roofline import Peak, Position
    from jaxtorch.insight.profile.summary import Profile

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 24, 40
_MOST = 10
_NEAR = 9  # distance below which labels would overlap


def heading(peak: Peak) -> str:
    """The heading: the roof of the device."""
    return (
        f"Roofline of {peak.name}: {amount(peak.flops)}FLOP/s, {amount(peak.bandwidth)}B/s; "
        f"arithmetic is the limit above {peak.ridge:.3g} ops/byte"
    )


@dataclass(frozen=True)
class RoofRow(Row):
    """A line under the roof. Its number is the label of its point."""

    number: Annotated[int, Column("point", "number")]
    intensity: Annotated[str, Column("ops/byte", "number")]
    speed: Annotated[float, Column("ops/s", "amount")]
    reached: Annotated[float, Column("of the roof", "share")]
    limit: Annotated[str, Column("limit")]
    line: Annotated[str, Column("line", "code")]


def rows(profile: Profile) -> list[RoofRow]:
    """The rows of the table: the lines with the most time."""
    return [
        RoofRow(
            id=number,
            number=number,
            intensity=f"{position.intensity:.3g}",
            speed=position.speed,
            reached=position.speed / position.roof,
            limit="memory" if position.memory else "arithmetic",
            line=_line(position),
        )
        for number, position in enumerate(profile.roofline[:_MOST], 1)
    ]


def _line(position: Position) -> str:
    location = position.row.location
    return position.row.name if location is None else f"{line_label(location)}: {text_of(location)}"


def drawing(profile: Profile) -> str:
    """The drawing; "" if the roof is unknown or there is nothing to draw."""
    peak, shown = profile.peak, profile.roofline[:_MOST]
    if peak is None or not shown:
        return ""
    across = _Axis([peak.ridge, *(p.intensity for p in shown)], _LEFT, _WIDTH - _RIGHT)
    up = _Axis([peak.flops, *(p.speed for p in shown)], _HEIGHT - _BOTTOM, _TOP)
    roof = [(i, peak.roof(i)) for i in (across.low, peak.ridge, across.high)]
    low = up.low / peak.bandwidth  # at lower intensities, the roof is below the drawing
    if low > across.low:
        roof[0] = (low, up.low)
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in roof)
    svg = (
        f'<svg role="img" aria-label="{escape(heading(peak), quote=True)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'style="display:block;width:100%" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(map(_vertical, map(across, across.powers)))}{''.join(map(_level, map(up, up.powers)))}"
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
    left = _text(0, _TOP - 14, "operations per second: ", 0)
    left += "".join(_text(_LEFT - 6, up(v), _short(v), -100, -50) for v in up.powers)
    below = _text(_WIDTH / 2, _HEIGHT - 8, "operations per byte: ", -50, -50)
    below += "".join(
        _text(across(v), _HEIGHT - _BOTTOM + 10, _short(v), -50, -50) for v in across.powers
    )
    points = _points([(p, across(p.intensity), up(p.speed)) for p in shown])
    return (
        f'<div style="position:relative;max-width:{_WIDTH}px;font-size:10px;line-height:1.2;white-space:nowrap">'
        f"{svg}<div>{left}</div><div>{below}</div><div>{points}</div></div>"
    )


def _text(x: float, y: float, text: str, right: float, down: float = 0) -> str:
    """A text at a place, moved by percents of its size. An SVG that is removed would leave its texts run together."""
    at = f"left:{100 * x / _WIDTH:.2f}%;top:{100 * y / _HEIGHT:.2f}%"
    return (
        f'<span style="position:absolute;{at};transform:translate({right}%,{down}%)">{text} </span>'
    )


class _Axis:
    """A logarithmic axis with some room around the values."""

    def __init__(self, values: Sequence[float], start: float, stop: float):
        self.low, self.high = min(values) / 4, max(values) * 4
        self._from, self._to = start, stop

    def __call__(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self._from + part * (self._to - self._from)

    @property
    def powers(self) -> list[float]:
        """The powers of ten to mark, at most eight."""
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        step = max(1, math.ceil((last - first + 1) / 8))
        return [10.0**n for n in range(first, last + 1, step)]


def _vertical(at: float) -> str:
    return (
        f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#8884"/>'
    )


def _level(at: float) -> str:
    return f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" stroke="#8884"/>'


def _points(shown: Sequence[tuple[Position, float, float]]) -> str:
    """The points. Points that overlap share a label."""
    labels: dict[tuple[float, float], list[str]] = {}
    parts = []
    for number, (position, x, y) in enumerate(shown, 1):
        near = next((at for at in labels if math.dist(at, (x, y)) < _NEAR), (x, y))
        labels.setdefault(near, []).append(str(number))
        reached = share(position.speed, position.roof)
        hint = escape(f"{number}. {_line(position)}: {reached} of the roof", quote=True)
        dot = "display:block;width:8px;height:8px;border-radius:50%;background:#3b82f6cc"
        parts.append(_text(x, y, f'<i title="{hint}" style="{dot}"></i>', -50, -50))
    for (x, y), numbers in labels.items():
        parts.append(_text(x + 6, y - 4, ", ".join(numbers), 0, -100))
    return "".join(parts)


def _short(value: float) -> str:
    """
    Example:
        >>> _short(1e-2), _short(1.0), _short(1e9)
        ('0.01', '1', '1 G')
    """
    return f"{value:g}" if value < 1 else amount(value).replace(".00", "").replace(".0", "")
