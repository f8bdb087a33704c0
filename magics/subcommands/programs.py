"""The names of programs, for completion."""

from __future__ import annotations

from collections.abc import Iterable

from jaxtorch.insight.programs import ProgramInfo, programs


def captured_names(start: str) -> Iterable[str]:
    """The names of captured programs, the latest first."""
    return _names(start, programs())


def runnable_names(start: str) -> Iterable[str]:
    """The same, of programs that can still run."""
    return _names(start, [p for p in programs() if p.alive])


def _names(start: str, found: list[ProgramInfo]) -> Iterable[str]:
    """Without duplicates. A session has hundreds of eager operators: they are offered if nothing else fits."""
    latest = [p for p in reversed(found) if p.name.startswith(start)]
    captured = dict.fromkeys(p.name for p in latest if p.kind not in ("eager", "engine"))
    return captured or (dict.fromkeys(p.name for p in latest) if start else ())
