"""What is known not to hold: (row, door) -> why. A case that holds all the same fails the suite."""

from __future__ import annotations

_SHARED = "an item that a nested defaultdict made is stored again by a later run, with the number that it has by then"

KNOWN: dict[tuple[str, str], str] = {
    ("a defaultdict's numbers", "%%jit"): _SHARED,
    ("a defaultdict's numbers", "jit"): _SHARED,
}
