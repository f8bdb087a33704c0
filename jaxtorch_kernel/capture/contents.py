"""What lists, dictionaries and sets hold, to be compared and put back after code that ran once, in a trace."""

from __future__ import annotations

from typing import Any, NamedTuple


class Container(NamedTuple):
    """A list, dictionary or set that was met."""

    path: str
    now: Any
    attributes: bool  # what an object keeps in itself


class Contents:
    """What containers hold: to be made before code runs that might change them."""

    def __init__(self, containers: list[Container]):
        self._before = [(c, c.now.copy()) for c in containers]

    def changed(self) -> list[str]:
        """The paths of the lists, dictionaries and sets that no longer hold what they held."""
        return [
            c.path
            for c, before in self._before
            if not c.attributes and not _same_contents(c.now, before)
        ]

    def restore(self) -> None:
        """Give the containers back what they held."""
        for (_, now, _), before in self._before:
            if _same_contents(now, before):
                continue
            if isinstance(now, list):
                now[:] = before
            else:
                now.clear()
                now.update(before)


def _same_contents(now: Any, before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        if now.keys() != before.keys():
            return False
        now, before = now.values(), before.values()
    elif isinstance(now, set):
        return bool(now == before)
    return all(a is b for a, b in zip(now, before, strict=True))
