"""`%jax devices`: the devices, and how an array is sharded over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Annotated

from jaxtorch.insight.sharding import DeviceInfo, Drawing, devices

from .page import Chart, Column, Page, Row, Table, columns
from .page_text import shortened
from .units import counted
from .view import PageView


@dataclass(frozen=True)
class DeviceRow(Row):
    """A device. The row's id is JAX's id of the device."""

    name: Annotated[str, Column("device", "code")]
    number: Annotated[int, Column("#", "count")]
    kind: Annotated[str, Column("chip")]
    process: Annotated[str | None, Column("process", wide=True)]
    allocated: Annotated[int, Column("allocated", "bytes", "by the arrays on it")]
    used: Annotated[int | None, Column("used", "bytes", "as XLA reports it")]
    limit: Annotated[int | None, Column("limit", "bytes")]
    share: Annotated[float | None, Column("share", "share", "the used part of the limit")]


@dataclass(frozen=True)
class Sharding:
    """The parts of an array as cells of a table.

    Attributes:
        heads, sides: the index ranges along the columns and the rows; "" without an axis.
        parts: for each row and column, the ids of the devices that hold the part.
        labels: `parts` as text.
        colors: a color for each part. Equal sets of devices have the same color.
    """

    heads: list[str]
    sides: list[str]
    parts: list[list[list[int]]]
    labels: list[list[str]]
    colors: list[list[str]]


class DevicesView(PageView):
    """The devices of the session, or the sharding of one array."""

    def __init__(self, look: Callable[[], Drawing] | None = None, name: str = ""):
        """`look` returns the current sharding of the array `name`. An error in the first call is raised here."""
        self._look, self.name = look, name
        self.drawing: Drawing | None = None
        self._refreshed_at = 0.0
        self._refresh()

    def _refresh(self) -> None:
        self.devices = devices()
        self.gone = ""
        if self._look is None:
            return
        try:
            self.drawing = self._look()
        except Exception as error:
            if self.drawing is None:
                raise
            self.gone = str(error).partition("\n")[0] or type(error).__name__

    def revision(self) -> object:
        # `_see` walks all arrays of the session, which is too slow for ten times a second.
        now = time.monotonic()
        if now - self._refreshed_at > _PERIOD:
            self._refresh()
            self._refreshed_at = now
        return tuple(self.devices), self.drawing, self.gone

    def page(self) -> Page:
        self._refresh()
        drawn = self.drawing
        several = len({d.process for d in self.devices}) > 1
        rows = [_row(device, several) for device in self.devices]
        table = Table("devices", columns(DeviceRow, rows), rows, name="Devices")
        if drawn is None:
            return Page(counted(len(rows), "device"), sections=(table,))
        parts = sharding(drawn)
        chart = Chart("sharding", parts, text=lambda: _boxes(parts), html=lambda: _picture(parts))
        return Page(
            _title(self.name, drawn),
            warnings=(f"{self.gone}; the drawing is the last one.",) if self.gone else (),
            sections=(chart, replace(table, selects=True, text_rows=0)),
        )


_MOST = 24  # maximum rows and columns to draw without a script
_PERIOD = 1.0  # seconds


def _row(device: DeviceInfo, several: bool) -> DeviceRow:
    process = f"{device.process}{'' if device.here else ' (another)'}"
    return DeviceRow(
        id=device.id,
        name=device.name,
        number=device.id,
        kind=device.kind,
        process=process if several else None,
        allocated=device.allocated,
        used=device.used,
        limit=device.limit,
        share=device.used / device.limit if device.used is not None and device.limit else None,
    )


def sharding(drawn: Drawing) -> Sharding:
    """The parts of a drawing as cells of a table."""
    distinct = list(dict.fromkeys(part for row in drawn.parts for part in row))
    hues = {part: round(360 * i / len(distinct)) for i, part in enumerate(distinct)}
    return Sharding(
        _ranges(drawn.columns, drawn.axes[1]),
        _ranges(drawn.rows, drawn.axes[0]),
        [[list(part) for part in row] for row in drawn.parts],
        [[_label(part) for part in row] for row in drawn.parts],
        # These colors are visible on light and dark pages.
        [[f"hsla({hues[part]}, 65%, 50%, 0.45)" for part in row] for row in drawn.parts],
    )


def _title(name: str, drawn: Drawing) -> str:
    """A description of an array."""
    mesh = ", ".join(f"{axis}={count}" for axis, count in drawn.mesh)
    text = f"{name}: {drawn.dtype}[{', '.join(map(str, drawn.shape))}], {drawn.spec}"
    text += f" over a mesh of {mesh}" if mesh else ""
    if drawn.left_out:
        axes = ", ".join(map(str, drawn.left_out))
        text += f"; also sharded along axis {axes}, not drawn"
    return text


def _label(part: Sequence[int]) -> str:
    """The devices that hold a part: "0", "0, 4" or "0-7".

    Example:
        >>> from jaxtorch.widgets.devices import _label
        >>> _label([3]), _label([0, 4]), _label([0, 1, 2, 3, 6])
        ('3', '0, 4', '0-3, 6')
    """
    runs: list[list[int]] = []
    for device in part:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def _ranges(cuts: Sequence[tuple[int, int]], axis: int | None) -> list[str]:
    return ["" if axis is None else f"{first}:{last}" for first, last in cuts]


def _boxes(drawn: Sharding) -> str:
    """The parts as text boxes with the ids of their devices."""
    heads, sides = drawn.heads[:_MOST], drawn.sides[:_MOST]
    table = [[shortened(label, 14) for label in row[:_MOST]] for row in drawn.labels[:_MOST]]
    widths = [max(len(heads[i]), *(len(row[i]) for row in table)) for i in range(len(heads))]
    margin = " " * max(map(len, sides))

    def rule(left: str, middle: str, right: str) -> str:
        return f"{margin} {left}{middle.join('─' * (w + 2) for w in widths)}{right}"

    lines = [f"{margin}  " + " ".join(h.center(w + 2) for h, w in zip(heads, widths, strict=True))]
    lines.append(rule("┌", "┬", "┐"))
    for i, (side, row) in enumerate(zip(sides, table, strict=True)):
        if i:
            lines.append(rule("├", "┼", "┤"))
        inner = "│".join(f" {c.center(w)} " for c, w in zip(row, widths, strict=True))
        lines.append(f"{side.rjust(len(margin))} │{inner}│")
    lines.append(rule("└", "┴", "┘"))
    return "\n".join(line.rstrip() for line in [*lines, _left_out(drawn)]).rstrip()


def _left_out(drawn: Sharding) -> str:
    """A note that a static form leaves out parts; "" if it draws all parts."""
    rows, across = len(drawn.sides), len(drawn.heads)
    return f"the first {_MOST} of {rows} × {across} parts" if max(rows, across) > _MOST else ""


def _picture(drawn: Sharding) -> str:
    heads = "".join(
        f'<th scope="col" style="padding:2px 6px;font-weight:400;opacity:0.7">{head}</th>'
        for head in drawn.heads[:_MOST]
    )
    body = []
    for side, labels, shades in zip(drawn.sides[:_MOST], drawn.labels, drawn.colors, strict=False):
        cells = "".join(
            f'<td style="background:{shade};border:1px solid #8888;padding:8px 14px;text-align:center">'
            f"{escape(label)}</td>"
            for label, shade in zip(labels[:_MOST], shades, strict=False)
        )
        body.append(
            f'<tr><th scope="row" style="padding:2px 6px;font-weight:400;opacity:0.7">{side}</th>{cells}</tr>'
        )
    left = _left_out(drawn)
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:13px" '
        f'aria-label="devices of each part"><thead><tr><td></td>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{f'<p>{left}</p>' if left else ''}"
    )
