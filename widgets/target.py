"""The session's programs on another chip: the table of `%jax target`, and the fit report of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from jaxtorch.capture.target_program import TargetProgram
from jaxtorch.capture.tpu_chips import chip_of
from jaxtorch.insight.elsewhere import fit_of
from jaxtorch.insight.fit.report import Fit

from .fit import FitView
from .page import Column, Note, Notes, Page, Row, Section, Table, columns
from .units import counted, duration
from .view import PageView

_PARTS = {"": "", "saving": "forward", "backward": "backward"}


@dataclass(frozen=True)
class TargetRow(Row):
    """A program on a chip."""

    program: Annotated[str, Column("program", "code")]
    part: Annotated[str, Column("part")]
    target: Annotated[str, Column("target", "code")]
    state: Annotated[str, Column("state")]
    memory: Annotated[int | None, Column("memory", "bytes", "on each chip")]
    available: Annotated[float, Column("of", "bytes", "what libtpu leaves to programs")]
    time: Annotated[str, Column("time (estimate)", help="of one run, by a roofline of the chip")]
    seconds: Annotated[float | None, Column("compiled in", "seconds", "lowered and compiled")]


class TargetView(PageView):
    """The results so far. It follows them while it is visible.

    Args:
        target: what is set for the session; None for nothing.
        programs: gives the programs.
    """

    def __init__(self, target: str | None, programs: Callable[[], Sequence[TargetProgram]]):
        self.target, self.programs = target, programs

    def page(self) -> Page:
        programs = self.programs()
        rows = [_row(i, program) for i, program in enumerate(programs)]
        sections: list[Section] = []
        if rows:
            sections.append(Table("programs", columns(TargetRow, rows), rows, name="Programs"))
        said = [Note(f"{title_of(p)}: {p.error or p.note}") for p in programs if p.error or p.note]
        if said:
            sections.append(Notes(tuple(said), text_most=20))
        title = f"Target: {self.target or 'none'}; {counted(len(rows), 'program')}"
        return Page(title, sections=tuple(sections))

    def revision(self) -> object:
        return [(id(p), p.state) for p in self.programs()]


def fit_view(program: TargetProgram) -> FitView:
    """The fit report of a compiled program."""
    report = fit_of(program)
    assert report is not None
    return FitView(report, title_of(program), program.note)


def title_of(program: TargetProgram) -> str:
    """The program with its part and target, as a sentence names it.

    Example:
        >>> from jaxtorch.capture.target_program import TargetProgram
        >>> from jaxtorch.programs.stats import ProgramRecord
        >>> title_of(TargetProgram(ProgramRecord("step", 0, 0, part="backward"), "v5e:1x1"))
        'step (backward) for v5e:1x1'
    """
    part = _PARTS.get(program.part, program.part)
    return f"{program.title}{f' ({part})' if part else ''} for {program.target}"


def line_of(program: TargetProgram) -> str:
    """The result of a program, in one line.

    Example:
        >>> from jaxtorch.capture.target_program import TargetProgram
        >>> from jaxtorch.programs.stats import ProgramRecord
        >>> line_of(TargetProgram(ProgramRecord("step", 0, 0), "v5e:1x1"))
        'step for v5e:1x1: waiting'
    """
    report = fit_of(program)
    if report is None:
        return f"{title_of(program)}: {program.error or program.state}"
    return f"{title_of(program)}: {report.verdict}"


def _row(index: int, program: TargetProgram) -> TargetRow:
    report = fit_of(program)
    return TargetRow(
        id=index,
        program=program.title,
        part=_PARTS.get(program.part, program.part),
        target=program.target,
        state=program.state,
        memory=None if report is None else report.used,
        available=chip_of(program.target).available.value,
        time=_time(report),
        seconds=program.seconds if program.ended else None,
    )


def _time(report: Fit | None) -> str:
    if report is None or report.time is None:
        return ""
    return ", ".join(filter(None, (duration(report.time.total * 1e9), report.time.bound)))
