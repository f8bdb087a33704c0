"""The user's code with what each line costs on the device: cells whole, files where something happened."""

from __future__ import annotations

import linecache
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from ..programs import Place
from .summary import Profile, Time

_AROUND = 2  # lines shown before and after one of a file that has time


@dataclass(frozen=True)
class Line:
    """A line of code; `time` is None where it had nothing to do on the device."""

    number: int
    text: str
    time: Time | None


@dataclass(frozen=True)
class Source:
    """A cell, or what is shown of a file.

    Attributes:
        total: nanoseconds on the device of all its lines.
        lines: in order; numbers leap where lines of a file are left out.
    """

    file: str
    cell: int | None
    total: float
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        """What it is called in a view."""
        return self.file if self.cell is None else f"cell [{self.cell}]"


def annotate(profile: Profile, first: str = "") -> list[Source]:
    """The code of a profile, by time; `first`: the file that comes before the others, if any of it has time."""
    files: dict[str, dict[int, Time]] = defaultdict(dict)
    cells: dict[str, int | None] = {}
    for row in profile.lines:
        if row.place is not None:
            files[row.place.file][row.place.line] = row.time
            cells[row.place.file] = row.place.cell
    found = [_source(file, cells.get(file), times) for file, times in files.items()]
    return sorted(found, key=lambda s: (s.file != first, -s.total))


def _source(file: str, cell: int | None, times: dict[int, Time]) -> Source:
    text = [line.rstrip("\n") for line in linecache.getlines(file)]
    last = max([len(text), *times])
    whole = cell is not None or not file.endswith(".py")
    shown = [
        n for n in range(1, last + 1) if whole or any(abs(n - own) <= _AROUND for own in times)
    ]
    lines = tuple(Line(n, text[n - 1] if n <= len(text) else "", times.get(n)) for n in shown)
    return Source(file, cell, sum(t.total for t in times.values()), lines)


def where(place: Place) -> str:
    """A line as a table names it: its cell, or its file without the folders.

    Example:
        >>> where(Place("/home/me/models.py", 43))
        'models.py, line 43'
    """
    return str(place if place.cell is not None else replace(place, file=Path(place.file).name))


def text_of(place: Place) -> str:
    """The code on a line, without its indentation; "" where the file cannot be read."""
    return linecache.getline(place.file, place.line).strip()
