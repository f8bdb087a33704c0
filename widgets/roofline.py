"""The roofline plot: a table for a terminal, a drawing for a page.

Both axes are logarithmic. The x axis has operations per byte moved, the y axis operations per second. The roof rises
where memory bandwidth is the limit, and is flat where arithmetic is the limit. Each point is a source line. Its label
is the number of the line in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 40
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
    """The drawing as inline SVG; "" if the roof is unknown or there is nothing to draw."""
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
    return (
        f'<svg role="img" aria-label="{escape(heading(peak), quote=True)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'style="width:100%;max-width:{_WIDTH}px;height:auto" xmlns="http://www.w3.org/2000/svg">'
        f"{_ticks(across, _across)}{_ticks(up, _up)}"
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f"{_points([(p, across(p.intensity), up(p.speed)) for p in shown])}"
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle" font-size="11" fill="currentColor">'
        "operations per byte</text>"
        f'<text x="12" y="{_HEIGHT / 2:.0f}" text-anchor="middle" font-size="11" fill="currentColor" '
        f'transform="rotate(-90 12 {_HEIGHT / 2:.0f})">operations per second</text></svg>'
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


def _ticks(axis: _Axis, draw: Callable[[float, str], str]) -> str:
    return "".join(draw(axis(value), _short(value)) for value in axis.powers)


def _across(at: float, label: str) -> str:
    return (
        f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#8884"/>'
        f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle" font-size="10" '
        f'fill="currentColor" opacity=".7">{label}</text>'
    )


def _up(at: float, label: str) -> str:
    return (
        f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" stroke="#8884"/>'
        f'<text x="{_LEFT - 6}" y="{at + 3:.1f}" text-anchor="end" font-size="10" '
        f'fill="currentColor" opacity=".7">{label}</text>'
    )


def _points(shown: Sequence[tuple[Position, float, float]]) -> str:
    """The points. Points that overlap share a label."""
    labels: dict[tuple[float, float], list[str]] = {}
    parts = []
    for number, (position, x, y) in enumerate(shown, 1):
        near = next((at for at in labels if math.dist(at, (x, y)) < _NEAR), (x, y))
        labels.setdefault(near, []).append(str(number))
        reached = share(position.speed, position.roof)
        hint = escape(f"{number}. {_line(position)}: {reached} of the roof")
        parts.append(
            f'<g><title>{hint}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#3b82f6" fill-opacity=".8"/></g>'
        )
    for (x, y), numbers in labels.items():
        parts.append(
            f'<text x="{x + 6:.1f}" y="{y - 4:.1f}" font-size="10" fill="currentColor">{", ".join(numbers)}</text>'
        )
    return "".join(parts)


def _short(value: float) -> str:
    """
    Example:
        >>> _short(1e-2), _short(1.0), _short(1e9)
        ('0.01', '1', '1 G')
    """
    return f"{value:g}" if value < 1 else amount(value).replace(".00", "").replace(".0", "")
