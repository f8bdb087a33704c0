"""What a cell magic passes to the programs of its cell, and what it gets back."""

from __future__ import annotations

from typing import NamedTuple

UNNAMED = "cell"  # the name of the program of a cell that was given none


class CellOptions(NamedTuple):
    """The options on the magic's line, except those for its report."""

    effects: bool  # %%jit
    name: str
    static: tuple[str, ...]
    no_grad: bool
    donate: tuple[str, ...]
    precision: str | None


class CellOutcome(NamedTuple):
    """The outcome of a run, for its report.

    Attributes:
        shown: the value of the cell's last expression.
        inputs, outputs: how many names the program reads and assigns.
        traced: whether the cell was traced; `nth`: how often so far; `reasons`: why again.
        trace_seconds, xla_seconds: the time of the trace and of the compilation.
        plain: whether the cell ran as plain Python.
    """

    shown: object
    inputs: int
    outputs: int
    traced: bool
    nth: int
    reasons: list[str]
    trace_seconds: float
    xla_seconds: float
    plain: bool = False
