"""`%jax memory`: the arrays on the device, what created them, what each cell held, and what keeps an array alive."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from jaxtorch.device.memory import max_memory_allocated, mem_get_info
from jaxtorch.insight.memory import CellMemory, LiveArray, cells, live_arrays
from jaxtorch.insight.programs import Memory, Place, ProgramInfo
from jaxtorch.insight.retainers import retainers
from jaxtorch.storage.buffer import usage

from .places import place_data, place_id, where
from .tables import details, html_table, shortened, text_table
from .units import size
from .view import View

_PERIOD = 2.0  # seconds
_SMALL = 1024  # bytes
_TEXT_ROWS, _HTML_ROWS, _DATA_ROWS = 20, 200, 2000


class MemoryView(View):
    """The live arrays of the session.

    `data()`; sizes are bytes:

    | key | what |
    | --- | --- |
    | total, peak | bytes held by all arrays now, and the peak |
    | free, limit | of the device (on the CPU: of the machine) |
    | arrays | rows: {id, bytes, shape: [...], dtype, devices, made_by, place, file, line, cell, name, tensor} |
    | left_out | {arrays, bytes}: smaller arrays that are not in `arrays` |
    | lines | totals by source line: {id, place, file, line, cell, arrays, bytes} |
    | cells | memory of each cell: {id, cell, seconds, before, peak, after} (tensors of 32 KiB and more) |

    `name` is null if no name leads to the array; `place` is "" if its line is unknown.

    `answer("why", {array: id})` is a list of texts: what keeps the array alive.
    """

    kind = "memory"

    def __init__(self, namespace: Mapping[str, Any] | None = None):
        self.namespace = namespace or {}
        self._looked = 0.0
        self._seen: object = None

    def text(self) -> str:
        found = live_arrays(self.namespace)
        lines = [_summary(found), ""]
        rows, left = _table(found, _TEXT_ROWS)
        lines += [*text_table(_NAMES, rows, left=6), *([left] if left else [])]
        sums = _by_line(found)[:8]
        lines += ["", *text_table(("by line", "arrays", "size"), map(_line_cells, sums))]
        if cells():
            lines += ["", *_cells_text(cells()[-12:])]
        return "\n".join(line[:120] for line in lines)

    def html(self) -> str:
        found = live_arrays(self.namespace)
        parts = [f'<p style="margin:4px 0">{escape(_summary(found))}</p>']
        rows, caption = _table(found, _HTML_ROWS, wide=True)
        parts.append(details("By array", html_table(_NAMES, rows, 6, caption), opened=True))
        columns = ("line", "arrays", "size")
        parts.append(details("By line", html_table(columns, map(_line_cells, _by_line(found)))))
        if cells():
            parts.append(details("By cell", _curve(cells()) + _cells_table(cells()[-200:])))
        return "".join(parts)

    def revision(self) -> object:
        # Drawing it walks every object of the session: too slow for ten times a second.
        now = time.monotonic()
        if now - self._looked > _PERIOD:
            self._looked, self._seen = now, (usage.allocated, len(cells()))
        return self._seen

    def data(self) -> dict[str, Any]:
        found = live_arrays(self.namespace)
        free, limit = mem_get_info()
        left = found[_DATA_ROWS:]
        return {
            "total": sum(a.nbytes for a in found),
            "peak": max_memory_allocated(),
            "free": free,
            "limit": limit,
            "arrays": [_array_data(a) for a in found[:_DATA_ROWS]],
            "left_out": {"arrays": len(left), "bytes": sum(a.nbytes for a in left)},
            "lines": [
                {"id": place_id(place), **place_data(place), "arrays": count, "bytes": total}
                for place, count, total in _by_line(found)
            ],
            "cells": [
                {
                    "id": i,
                    "cell": c.cell,
                    "seconds": c.seconds,
                    "before": c.before,
                    "peak": c.peak,
                    "after": c.after,
                }
                for i, c in enumerate(cells())
            ],
        }

    def answer(self, ask: str, arguments: dict[str, Any]) -> Any:
        if ask == "why":
            return retainers(int(arguments["array"]), self.namespace)
        return super().answer(ask, arguments)


_NAMES = ("#", "name", "shape", "dtype", "made at", "by", "size")


class KeptView(View):
    """What keeps an array alive: `data()` is {array: a row as in `MemoryView`, ways: [...]}."""

    kind = ""

    def __init__(self, array: LiveArray, ways: Sequence[str]):
        self.array, self.ways = array, list(ways)

    def text(self) -> str:
        return "\n".join([f"{_look(self.array)} is kept alive by", *(f"  {w}" for w in self.ways)])

    def html(self) -> str:
        ways = "".join(f"<li>{escape(way)}</li>" for way in self.ways)
        return f"<p>{escape(_look(self.array))} is kept alive by</p><ul>{ways}</ul>"

    def data(self) -> dict[str, Any]:
        return {"array": _array_data(self.array), "ways": self.ways}


class ProgramMemoryView(View):
    """The memory of one run of a program.

    `data()`: {program: {id, name}, memory: {arguments, outputs, alias, temporary, code, peak} or null, buffers:
    [{id, kind, bytes, holds: [{instruction, offset, bytes}, ...]}, ...]}, the largest first; `holds` lists the values
    that occupy the buffer at some time.
    """

    kind = ""

    def __init__(self, program: ProgramInfo, buffers: Sequence[Any] = ()):
        self.program, self.memory, self.buffers = program, program.memory(), list(buffers)

    def text(self) -> str:
        lines = [self._title(), ""]
        if self.memory is not None:
            lines += text_table(("what", "size"), _parts(self.memory))
        if self.buffers:
            rows = [(*r[:3], shortened(r[3], 60)) for r in map(_buffer, self.buffers[:30])]
            lines += ["", *text_table(("buffer", "kind", "size", "holds"), rows, left=4)]
        return "\n".join(lines)

    def html(self) -> str:
        parts = [f'<p style="margin:4px 0">{escape(self._title())}</p>']
        if self.memory is not None:
            parts.append(html_table(("what", "size"), _parts(self.memory)))
        if self.buffers:
            columns = ("buffer", "kind", "size", "holds, largest first")
            rows = map(_buffer, self.buffers[:_HTML_ROWS])
            parts.append(details("By buffer", html_table(columns, rows, left=4), opened=True))
        return "".join(parts)

    def _title(self) -> str:
        if self.memory is None:
            return f"{self.program.name} (#{self.program.id}): its memory is no longer known to XLA"
        return (
            f"{self.program.name} (#{self.program.id}): peak of {size(self.memory.peak)} in one run"
        )

    def data(self) -> dict[str, Any]:
        memory = self.memory
        return {
            "program": {"id": self.program.id, "name": self.program.name},
            "memory": None if memory is None else {**asdict(memory), "peak": memory.peak},
            "buffers": [
                {
                    "id": b.index,
                    "kind": b.kind,
                    "bytes": b.size,
                    "holds": [
                        {"instruction": h.instruction, "offset": h.offset, "bytes": h.size}
                        for h in b.held
                    ],
                }
                for b in self.buffers
            ],
        }


def _parts(memory: Memory) -> list[tuple[str, str]]:
    return [
        ("arguments", size(memory.arguments)),
        ("results", size(memory.outputs)),
        ("of these, in donated arguments", size(memory.alias)),
        ("intermediate values", size(memory.temporary)),
        ("program code", size(memory.code)),
    ]


def _buffer(buffer: Any) -> tuple[str, str, str, str]:
    held = ", ".join(h.instruction for h in buffer.held[:20])
    more = len(buffer.held) - 20
    return (
        str(buffer.index),
        buffer.kind,
        size(buffer.size),
        held + (f", {more} more" if more > 0 else ""),
    )


def _summary(found: list[LiveArray]) -> str:
    total = sum(a.nbytes for a in found)
    nameless = [a for a in found if a.name is None and a.tensor]
    text = f"{len(found)} arrays hold {size(total)}; peak {size(max_memory_allocated())}"
    if nameless:
        text += f"; {len(nameless)} of them ({size(sum(a.nbytes for a in nameless))}) have no name"
    return text


def _table(
    found: list[LiveArray], most: int, wide: bool = False
) -> tuple[list[tuple[str, ...]], str]:
    """Rows for the largest arrays, and a note on the rest. Small arrays without a name get no row."""
    numbered = [(i, a) for i, a in enumerate(found, 1) if a.name or a.nbytes >= _SMALL][:most]
    count = len(found) - len(numbered)
    left = sum(a.nbytes for a in found) - sum(a.nbytes for _, a in numbered)
    rows = [_cells(i, a, wide) for i, a in numbered]
    return rows, f"and {count} smaller ones, {size(left)} in total" if count else ""


def _cells(number: int, array: LiveArray, wide: bool = False) -> tuple[str, ...]:
    name = array.name or ("" if array.tensor else "(not a tensor)")
    return (
        str(number),
        name if wide else shortened(name, 40),
        f"[{', '.join(map(str, array.shape))}]",
        array.dtype,
        where(array.place),
        shortened(array.made_by.split(".")[0], 24),
        size(array.nbytes),
    )


def _by_line(found: list[LiveArray]) -> list[tuple[Place | None, int, int]]:
    """(line, number of arrays, bytes), the largest first."""
    sums: dict[Place | None, tuple[int, int]] = {}
    for array in found:
        count, total = sums.get(array.place, (0, 0))
        sums[array.place] = count + 1, total + array.nbytes
    return sorted(((p, *s) for p, s in sums.items()), key=lambda s: -s[2])


def _line_cells(line: tuple[Place | None, int, int]) -> tuple[str, str, str]:
    place, count, total = line
    return where(place) or "(backward pass or JAX)", str(count), size(total)


def _cells_text(known: list[CellMemory]) -> list[str]:
    most = max(c.peak for c in known) or 1
    rows = [
        (
            "" if c.cell is None else f"[{c.cell}]",
            "█" * round(30 * c.peak / most),
            size(c.before),
            size(c.peak),
            size(c.after),
        )
        for c in known
    ]
    return text_table(("cell", "memory", "before", "peak", "after"), rows, left=2)


def _cells_table(known: list[CellMemory]) -> str:
    rows = [
        ("" if c.cell is None else f"[{c.cell}]", size(c.before), size(c.peak), size(c.after))
        for c in known
    ]
    return html_table(("cell", "before", "peak", "after"), rows)


def _curve(known: list[CellMemory]) -> str:
    """The peak of each cell as a bar; the memory it leaves behind is drawn solid."""
    most = max(c.peak for c in known) or 1
    known = known[-120:]
    width, height = 6, 60
    bars = []
    for i, c in enumerate(known):
        for value, opacity in ((c.peak, 0.35), (c.after, 0.9)):
            tall = height * value / most
            bars.append(
                f'<rect x="{i * width}" y="{height - tall:.1f}" width="{width - 1}" height="{tall:.1f}" '
                f'fill="currentColor" opacity="{opacity}"><title>cell [{c.cell}]: {size(value)}</title></rect>'
            )
    return (
        f'<svg role="img" aria-label="memory of the last {len(known)} cells, at most {size(most)}" '
        f'width="{len(known) * width}" height="{height}" style="display:block;margin:4px 0">{"".join(bars)}</svg>'
    )


def _look(array: LiveArray) -> str:
    name = f"`{array.name}` " if array.name else ""
    made = f", made at {where(array.place)}" if array.place is not None else ""
    return f"{name}{array.dtype}[{','.join(map(str, array.shape))}] ({size(array.nbytes)}{made})"


def _array_data(array: LiveArray) -> dict[str, Any]:
    return {
        "id": str(array.id),
        "bytes": array.nbytes,
        "shape": list(array.shape),
        "dtype": array.dtype,
        "devices": array.devices,
        "made_by": array.made_by,
        **place_data(array.place),
        "name": array.name,
        "tensor": array.tensor,
    }
