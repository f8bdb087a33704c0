"""User code with the device time of each line: whole cells, and the relevant parts of files."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from ...programs.site import lines_of, text_at
from ..programs import Location
from .summary import Profile, ProfileRow, Time

_AROUND = 2  # context lines around a line with time, in files


@dataclass(frozen=True)
class Line:
    """A line of code.

    Attributes:
        time: its self time on the device; None if it has none.
        inclusive: its device time including that of the code it called; None if there is none.
    """

    number: int
    text: str
    time: Time | None
    inclusive: Time | None


@dataclass(frozen=True)
class CodeSource:
    """A cell, or the parts of a file to show.

    Attributes:
        total: device time of all its lines, in nanoseconds.
        lines: the lines shown, in order.
    """

    file: str
    cell: int | None
    total: float
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        """Its title in a view."""
        return self.file if self.cell is None else f"cell [{self.cell}]"


def annotate(profile: Profile, first: str = "") -> list[CodeSource]:
    """The code of a profile, most time first. The file `first` precedes the others if it has any time."""
    files: dict[str, dict[int, ProfileRow]] = defaultdict(dict)
    cells: dict[str, int | None] = {}
    for row in (*profile.lines, *profile.calling):
        if row.location is not None:
            files[row.location.file][row.location.line] = row
            cells[row.location.file] = row.location.cell
    sources = [_source(file, cells.get(file), rows) for file, rows in files.items()]
    return sorted(sources, key=lambda s: (s.file != first, -s.total))


def _source(file: str, cell: int | None, rows: dict[int, ProfileRow]) -> CodeSource:
    text = lines_of(file)
    last = max([len(text), *rows])
    whole = cell is not None or not file.endswith(".py")
    shown = [
        n for n in range(1, last + 1) if whole or any(abs(n - line) <= _AROUND for line in rows)
    ]
    lines = tuple(_line(n, text[n - 1] if n <= len(text) else "", rows.get(n)) for n in shown)
    return CodeSource(file, cell, sum(row.time.total for row in rows.values()), lines)


def _line(number: int, text: str, row: ProfileRow | None) -> Line:
    if row is None:
        return Line(number, text, None, None)
    return Line(number, text, row.time if row.time.count else None, row.inclusive)


def line_label(location: Location) -> str:
    """A short name of a line, for tables: its cell, or its file name without folders, and its number.

    Example:
        >>> line_label(Location("/home/me/models.py", 43))
        'models.py, line 43'
    """
    return str(
        location if location.cell is not None else replace(location, file=Path(location.file).name)
    )


def text_of(location: Location) -> str:
    """The code on a line, without its indentation; "" if the file cannot be read."""
    return text_at(location.file, location.line)
