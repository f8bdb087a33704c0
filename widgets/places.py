"""Short names and ids for lines of user code."""

from __future__ import annotations

from os.path import basename
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtorch.insight.programs import Place


def where(place: Place | None, by_cell: bool = False) -> str:
    """A line in a few characters: "[3]:2" is line 2 of cell 3. "" for None.

    Example:
        >>> from jaxtorch.insight.programs import Place
        >>> from jaxtorch.widgets.places import where
        >>> where(Place("x.py", 7)), where(Place("c.py", 2, 3)), where(Place("c.py", 2, 3), by_cell=True)
        ('x.py:7', '[3]:2', '[3]')
    """
    if place is None:
        return ""
    if place.cell is None:
        return f"{basename(place.file)}:{place.line}"
    return f"[{place.cell}]" if by_cell else f"[{place.cell}]:{place.line}"


def place_id(place: Place | None, by_cell: bool = False) -> str:
    """A unique id of a line or cell. The id of a line has the full path, because two files may have the same name."""
    if place is None:
        return ""
    return str(place.cell) if by_cell else f"{place.file}:{place.line}"
