"""The table of `%jax status`: HTML with inline style and no script, so that every notebook viewer shows it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from .view import View

if TYPE_CHECKING:
    from jaxtorch.insight.status import DeviceMemory, Status

# Works on light and dark pages: the page's own text colour, and half-transparent lines.
_TABLE = "border-collapse:collapse;text-align:left;font-size:13px;margin:4px 0"
_NAME = "padding:3px 16px 3px 0;font-weight:600;vertical-align:top;text-align:left;border-top:1px solid #8884"
_CELL = "padding:3px 0;vertical-align:top;text-align:left;border-top:1px solid #8884"


class StatusView(View):
    """Shows a `Status`."""

    def __init__(self, status: Status):
        self.status = status

    def text(self) -> str:
        rows = _rows(self.status)
        width = max(len(name) for name, _ in rows)
        return "\n".join(
            f"{name if i == 0 else '':{width}}  {line}"
            for name, lines in rows
            for i, line in enumerate(lines)
        )

    def html(self) -> str:
        rows = "".join(
            f'<tr><th scope="row" style="{_NAME}">{escape(name)}</th>'
            f'<td style="{_CELL}">{"<br>".join(escape(line) for line in lines)}</td></tr>'
            for name, lines in _rows(self.status)
        )
        return f'<table style="{_TABLE}">{rows}</table>'


def _rows(status: Status) -> list[tuple[str, list[str]]]:
    """The rows to show: a name and its lines."""
    programs = f"{status.compiled}" + (
        f" in {status.compile_seconds:.1f} s" if status.compiled else ""
    )
    ran = [f"{name} × {count}" for name, count in status.fallbacks.items()]
    return [
        ("Platform", [f"{status.platform} ({_pairs(status.versions, ' ')})"]),
        ("Devices", [_device(d) for d in status.devices]),
        ("Memory peak", [_size(status.peak)]),
        ("Default device", [status.default_device]),
        ("Dtypes", [f"{status.default_dtype} by default; {status.dtype_policy}"]),
        ("Compiled programs", [programs]),
        ("Ran on the CPU", ran or ["no operator"]),
        ("Options", [_pairs(status.options, "=")]),
    ]


def _pairs(values: Mapping[str, object], sign: str) -> str:
    return ", ".join(f"{name}{sign}{value}" for name, value in values.items())


def _device(device: DeviceMemory) -> str:
    limit = "" if device.limit is None else f" of {_size(device.limit)}"
    return f"{device.name}: tensors hold {_size(device.allocated)}{limit}"


def _size(count: int) -> str:
    """A number of bytes for display.

    Example:
        >>> from jaxtorch.widgets.status import _size
        >>> _size(1536), _size(3 * 2**30)
        ('1.5 KiB', '3.0 GiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
