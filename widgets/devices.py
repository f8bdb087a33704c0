"""`%jax devices`: the devices, and how an array is sharded over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from jaxtorch.insight.sharding import DeviceInfo, Drawing, devices

from .tables import html_table, shortened, text_table
from .units import share, size
from .view import View


class DevicesView(View):
    """The devices of the session, or the sharding of one array.

    `data()`; sizes are bytes:

    | key | what |
    | --- | --- |
    | devices | rows: {id, name, platform, kind, process, here, held, used, limit}; null if XLA does not report it |
    | title | the array in words: its name, dtype, shape, placement; "" without one |
    | gone | why the name no longer refers to an array, or ""; the drawing is then the last one |
    | drawing | null, or {shape, dtype, spec, mesh: [[name, size]], axes, rows, columns, left_out, and three more (1)} |

    `rows` and `columns` are (from, to) along the two `axes`.
    (1) By row and column: `parts`, device ids; `labels`, the same as text; `colors`, equal for equal sets of devices.
    """

    kind = "devices"

    def __init__(self, look: Callable[[], Drawing] | None = None, name: str = ""):
        """`look` returns the current sharding of the array `name`. An error in the first call is raised here."""
        self._look, self.name = look, name
        self.drawing: Drawing | None = None
        self._looked = 0.0
        self._see()

    def _see(self) -> None:
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

    def text(self) -> str:
        self._see()
        if self.drawing is None:
            return "\n".join(text_table(_NAMES, map(_cells, self.devices), left=4))
        return "\n".join([_title(self.name, self.drawing), *_boxes(self.drawing)])

    def html(self) -> str:
        self._see()
        if self.drawing is None:
            return html_table(_NAMES, map(_cells, self.devices), left=4)
        title = escape(_title(self.name, self.drawing))
        return f'<p style="margin:4px 0">{title}</p>{_picture(self.drawing)}'

    def revision(self) -> object:
        # This walks all arrays of the session: too slow for ten times a second.
        now = time.monotonic()
        if now - self._looked > _PERIOD:
            self._see()
            self._looked = now
        return tuple(self.devices), self.drawing, self.gone

    def data(self) -> dict[str, Any]:
        self._see()
        drawn = self.drawing
        return {
            "devices": [asdict(d) for d in self.devices],
            "title": "" if drawn is None else _title(self.name, drawn),
            "gone": self.gone,
            "drawing": None
            if drawn is None
            else asdict(drawn)
            | {
                "labels": [[_label(part) for part in row] for row in drawn.parts],
                "colors": _colors(drawn),
            },
        }


_NAMES = ("#", "device", "chip", "process", "held", "used", "limit")
_MOST = 24  # maximum rows and columns to draw
_PERIOD = 1.0  # seconds


def _title(name: str, drawn: Drawing) -> str:
    """A description of an array."""
    mesh = ", ".join(f"{axis}={count}" for axis, count in drawn.mesh)
    text = f"{name}: {drawn.dtype}[{', '.join(map(str, drawn.shape))}], {drawn.spec}"
    text += f" over a mesh of {mesh}" if mesh else ""
    if drawn.left_out:
        axes = ", ".join(map(str, drawn.left_out))
        text += f"; also sharded along axis {axes}, not drawn"
    return text


def _cells(device: DeviceInfo) -> tuple[str, ...]:
    used = "" if device.used is None else size(device.used)
    if device.used is not None and device.limit:
        used += f" ({share(device.used, device.limit)})"
    return (
        str(device.id),
        device.name,
        device.kind,
        f"{device.process}{'' if device.here else ' (another)'}",
        size(device.held),
        used,
        "" if device.limit is None else size(device.limit),
    )


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


def _boxes(drawn: Drawing) -> list[str]:
    """The parts as text boxes with the ids of their devices."""
    columns, rows = drawn.columns[:_MOST], drawn.rows[:_MOST]
    table = [[shortened(_label(p), 14) for p in row[:_MOST]] for row in drawn.parts[:_MOST]]
    heads = _ranges(columns, drawn.axes[1])
    widths = [max(len(heads[i]), *(len(row[i]) for row in table)) for i in range(len(columns))]
    sides = _ranges(rows, drawn.axes[0])
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
    if len(drawn.rows) > _MOST or len(drawn.columns) > _MOST:
        lines.append(f"the first {_MOST} of {len(drawn.rows)} × {len(drawn.columns)} parts")
    return [line.rstrip() for line in lines]


def _colors(drawn: Drawing) -> list[list[str]]:
    """A colour for each part, equal for equal sets of devices; visible on light and dark pages."""
    known = list(dict.fromkeys(part for row in drawn.parts for part in row))
    hues = {part: round(360 * i / len(known)) for i, part in enumerate(known)}
    return [[f"hsla({hues[part]}, 65%, 50%, 0.45)" for part in row] for row in drawn.parts]


def _picture(drawn: Drawing) -> str:
    colors = _colors(drawn)
    heads = "".join(
        f'<th scope="col" style="padding:2px 6px;font-weight:400;opacity:0.7">{head}</th>'
        for head in _ranges(drawn.columns[:_MOST], drawn.axes[1])
    )
    body = []
    for side, row, shades in zip(
        _ranges(drawn.rows[:_MOST], drawn.axes[0]), drawn.parts, colors, strict=False
    ):
        cells = "".join(
            f'<td style="background:{shade};border:1px solid #8888;padding:8px 14px;text-align:center">'
            f"{escape(_label(part))}</td>"
            for part, shade in zip(row[:_MOST], shades, strict=False)
        )
        body.append(
            f'<tr><th scope="row" style="padding:2px 6px;font-weight:400;opacity:0.7">{side}</th>{cells}</tr>'
        )
    left = ""
    if len(drawn.rows) > _MOST or len(drawn.columns) > _MOST:
        left = f"<p>the first {_MOST} of {len(drawn.rows)} × {len(drawn.columns)} parts</p>"
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:13px" '
        f'aria-label="devices of each part"><thead><tr><td></td>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{left}"
    )
