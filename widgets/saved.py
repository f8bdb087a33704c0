"""The size of a view in a notebook's file: at most 60 kB, so that a notebook of views can be committed.

A view draws its page for less and less room (fewer rows, fewer lines) until it fits. The live form, or a file of
`--save`, has everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TypeVar

from .page_text import shortened

MOST = 60_000  # bytes of an output
MOST_TEXT = 6_500  # bytes of its text for a terminal
MOST_PAGE = MOST - MOST_TEXT - 500  # bytes of its page, which gets a mark around it

_LONGEST = 1_000  # characters of a line of text
_AROUND = 9  # bytes around a line: indentation, comma, end of line

T = TypeVar("T")


def saved_size(text: str) -> int:
    """The bytes that a text takes in a notebook's file, which has a JSON string for each of its lines.

    Example:
        >>> from jaxtorch.widgets.saved import saved_size
        >>> saved_size('"a"')
        16
    """
    lines = text.splitlines(keepends=True)
    return sum(len(json.dumps(line, ensure_ascii=False).encode()) + _AROUND for line in lines)


def fitting(draw: Callable[[T], str], rooms: Iterable[T], most: int = MOST_PAGE) -> str:
    """The first of several drawings of a page that is small enough to save; the last of them if none is.

    Args:
        draw: draws the page for one of `rooms`.
        rooms: how much to show, the most first.
        most: the bytes that there are.
    """
    page = ""
    for room in rooms:
        page = draw(room)
        if saved_size(page) <= most:
            break
    return page


def start_of(text: str, most: int = MOST_TEXT) -> str:
    """The first lines of a text, as many as fit into this number of bytes in a notebook's file."""
    lines = [shortened(line, _LONGEST) for line in text.split("\n")]
    sizes = accumulate(saved_size(f"{line}\n") for line in lines)
    kept = sum(size <= most - 100 for size in sizes)
    left = len(lines) - kept
    return "\n".join([*lines[:kept], *([f"… and {left} more lines"] if left else [])])
