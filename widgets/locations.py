"""Short names and ids for lines of user code."""

from __future__ import annotations

from os.path import basename
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtorch.insight.programs import Location


def label(location: Location | None, by_cell: bool = False) -> str:
    """A line in a few characters: "[3]:2" is line 2 of cell 3. "" for None.

    Example:
        >>> from jaxtorch.insight.programs import Location
        >>> from jaxtorch.widgets.locations import label
        >>> label(Location("x.py", 7)), label(Location("c.py", 2, 3)), label(Location("c.py", 2, 3), by_cell=True)
        ('x.py:7', '[3]:2', '[3]')
    """
    if location is None:
        return ""
    if location.cell is None:
        return f"{basename(location.file)}:{location.line}"
    return f"[{location.cell}]" if by_cell else f"[{location.cell}]:{location.line}"


def location_id(location: Location | None, by_cell: bool = False) -> str:
    """A unique id of a line or cell. The id of a line has the full path, because two files may have the same name."""
    if location is None:
        return ""
    return str(location.cell) if by_cell else f"{location.file}:{location.line}"
