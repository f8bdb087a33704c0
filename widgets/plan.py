"""A plan: a training step on several kinds and numbers of chips, a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxtorch.insight.plan import Choice, Plan

from .fit import brief
from .page import Column, Note, Notes, Page, Row, Table, columns
from .units import written
from .view import PageView


@dataclass(frozen=True)
class ChoiceRow(Row):
    """The step on some chips."""

    target: Annotated[str, Column("chips", "code")]
    mesh: Annotated[str, Column("mesh", "code", wide=True)]
    fits: Annotated[str, Column("fits")]
    used: Annotated[int | None, Column("memory per chip", "bytes")]
    available: Annotated[float | None, Column("of", "bytes", "what libtpu leaves to programs")]
    seconds: Annotated[float | None, Column("step", "seconds", mark="estimate")]
    bound: Annotated[str, Column("bound by")]
    chip_seconds: Annotated[
        float | None, Column("chips x time", "seconds", "the cost of a step", mark="estimate")
    ]
    utilization: Annotated[
        float | None,
        Column("matrix unit", "share", "of its peak in bfloat16", wide=True, mark="estimate"),
    ]
    estimate: bool = True


class PlanView(PageView):
    """A plan. Each row opens the findings, the memory by kind and the time by unit of its fit report."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def page(self) -> Page:
        rows = [_row(choice) for choice in self.plan.choices]
        best = self.plan.best
        finding = ""
        if best is not None and len(rows) > 1:
            cost = written(best.chip_seconds, "seconds")
            finding = f"`{best.target}` fits at the lowest cost: ~{cost} (chips x time) a step"
        elif best is None and rows:
            finding = "The step fits none of these chips."
        assumptions = {a: None for c in self.plan.choices if c.report for a in c.report.assumptions}
        table = Table("choices", columns(ChoiceRow, rows), rows, name="Chips", empty="No chips.")
        notes = Notes(tuple(map(Note, assumptions)), "What is assumed", text_most=0)
        return Page("Plan", finding=finding, sections=(table, notes))


def _row(choice: Choice) -> ChoiceRow:
    report = choice.report
    return ChoiceRow(
        id=choice.target,
        detail=(Notes((Note(choice.error),)),) if report is None else brief(report, choice.target),
        target=choice.target,
        mesh=" ".join(f"{axis}={size}" for axis, size in choice.mesh.items()),
        fits=choice.verdict,
        used=report.used if report else None,
        available=report.hbm if report else None,
        seconds=choice.seconds,
        bound=choice.bound,
        chip_seconds=choice.chip_seconds,
        utilization=report.utilization if report and choice.fits else None,
    )
