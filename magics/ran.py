"""Which captured programs a cell ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtorch.insight.programs import ProgramInfo, call_counts, ran_since


@contextmanager
def noting_runs() -> Iterator[list[ProgramInfo]]:
    """The list that the block gets has, at its end, the captured programs that ran in it."""
    before = call_counts()
    ran: list[ProgramInfo] = []
    yield ran
    ran += [p for p in ran_since(before) if p.captured and p.alive]


def shown_of(ran: list[ProgramInfo]) -> ProgramInfo | None:
    """The one that a reader means: the last, and its forward pass before its backward pass."""
    return max(ran, key=lambda p: (p.rank, p.part != "backward", p.id), default=None)
