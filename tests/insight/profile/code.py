"""Code of a file, profiled: what stands on which line is known by construction."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from jaxtorch.insight.profile import Profile, profile
from jaxtorch.insight.profile.summary import Time


class Ran:
    """A profile, and its lines by number."""

    def __init__(self, found: Profile, file: str):
        self.profile = found
        self.by_line: dict[int, Time] = {
            row.place.line: row.time
            for row in found.lines
            if row.place is not None and row.place.file == file
        }
        self.inclusive: dict[int, Time] = {
            row.place.line: row.inclusive
            for row in (*found.lines, *found.calling)
            if row.place is not None and row.place.file == file
        }
        self.elsewhere = [r for r in found.lines if r.place is None or r.place.file != file]

    def operators(self, line: int) -> set[str]:
        """What ran for a line, forward or backward."""
        return {
            s.origin.operator
            for s in self.profile.attribution.shares
            if s.origin.place is not None and s.origin.place.line == line
        }


def written(folder: Path, code: str, names: dict[str, Any], name: str = "code.py") -> str:
    """Run code from a file of its own, in these names; returns the file."""
    file = folder / name
    file.write_text(textwrap.dedent(code).lstrip("\n"))
    exec(compile(file.read_text(), str(file), "exec"), names)
    return str(file)


def ran(folder: Path, code: str, names: dict[str, Any], **how: Any) -> Ran:
    """Profile the function `work` that the code defines."""
    file = written(folder, code, names)
    found = profile(names["work"], **how)
    assert found.recording.error is None
    adds_up(found)
    return Ran(found, file)


def adds_up(found: Profile) -> None:
    """Every table is the same time, told apart in another way."""
    whole = pytest.approx(found.device)
    assert sum(r.time.total for r in found.lines) + found.unattributed.total == whole
    assert sum(r.time.total for r in found.operators) == whole
    assert sum(r.time.total for r in found.instructions) == whole
    assert sum(r.time.total for r in found.programs) == whole
    assert found.tree.time.total == whole
    assert sum(node.own.total for node in _nodes(found.tree)) == whole
    assert found.busy <= found.device * (1 + 1e-9)
    assert found.busy <= found.wall


def _nodes(node: Any) -> list[Any]:
    return [node, *(n for child in node.children for n in _nodes(child))]
