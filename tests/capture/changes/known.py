"""What is known not to hold: (row, door) -> why. A case that holds all the same fails the suite."""

from __future__ import annotations

KNOWN: dict[tuple[str, str], str] = {}
