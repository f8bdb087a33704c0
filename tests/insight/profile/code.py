"""Profiles of code in a file, whose lines have known operators."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from jaxtorch.insight.profile import Profile, profile
from jaxtorch.insight.profile.summary import Time


class Ran:
    """A profile, and its lines by number."""

    def __init__(self, profiled: Profile, file: str):
        self.profile = profiled
        self.by_line: dict[int, Time] = {
            row.location.line: row.time
            for row in profiled.lines
            if row.location is not None and row.location.file == file
        }
        self.inclusive: dict[int, Time] = {
            row.location.line: row.inclusive
            for row in (*profiled.lines, *profiled.calling)
            if row.location is not None and row.location.file == file
        }
        self.elsewhere = [
            r for r in profiled.lines if r.location is None or r.location.file != file
        ]

    def operators(self, line: int) -> set[str]:
        """What ran for a line, forward or backward."""
        return {
            s.origin.operator
            for s in self.profile.attribution.shares
            if s.origin.location is not None and s.origin.location.line == line
        }


def written(folder: Path, code: str, names: dict[str, Any], name: str = "code.py") -> str:
    """Write code to a file, run it with these names, and return the file."""
    file = folder / name
    file.write_text(textwrap.dedent(code).lstrip("\n"))
    exec(compile(file.read_text(), str(file), "exec"), names)
    return str(file)


def ran(folder: Path, code: str, names: dict[str, Any], **options: Any) -> Ran:
    """Profile the function `work` that the code defines."""
    file = written(folder, code, names)
    profiled = profile(names["work"], **options)
    assert profiled.recording.error is None
    adds_up(profiled)
    return Ran(profiled, file)


def adds_up(profiled: Profile) -> None:
    """Check that every table adds up to the device time."""
    whole = pytest.approx(profiled.device)
    assert sum(r.time.total for r in profiled.lines) + profiled.unattributed.total == whole
    assert sum(r.time.total for r in profiled.operators) == whole
    assert sum(r.time.total for r in profiled.instructions) == whole
    assert sum(r.time.total for r in profiled.programs) == whole
    assert profiled.tree.time.total == whole
    assert sum(node.self_time.total for node in _nodes(profiled.tree)) == whole
    assert profiled.busy <= profiled.device * (1 + 1e-9)
    assert profiled.busy <= profiled.wall


def _nodes(node: Any) -> list[Any]:
    return [node, *(n for child in node.children for n in _nodes(child))]
