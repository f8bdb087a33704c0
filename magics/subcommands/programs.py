"""The names of programs, for completion."""

from __future__ import annotations

from collections.abc import Iterable

from jaxtorch.insight.programs import ProgramInfo, programs


def captured_names(start: str) -> Iterable[str]:
    """The names of captured programs, the latest first."""
    return _names(start, programs())


def runnable_names(start: str) -> Iterable[str]:
    """The same for programs that can still run."""
    return _names(start, [p for p in programs() if p.alive])


def _names(start: str, programs: list[ProgramInfo]) -> Iterable[str]:
    """The matching names. Eager operators, hundreds in a session, are offered only if nothing else matches."""
    latest = [p for p in reversed(programs) if p.name.startswith(start)]
    captured = dict.fromkeys(p.name for p in latest if p.kind not in ("eager", "engine"))
    return captured or (dict.fromkeys(p.name for p in latest) if start else ())
