"""The page of a profile: the breakdown of its time, its code, its charts and its tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from jaxtorch.insight.profile.sources import line_label

from . import roofline
from .lines import is_estimate, slowest, source_code
from .page import Chart, Column, Page, Row, Section, Table, columns
from .profile_charts import bars, flame
from .profile_data import heading, phases
from .timeline import timeline
from .units import duration, share

if TYPE_CHECKING:
    from jaxtorch.insight.profile.sources import Source
    from jaxtorch.insight.profile.summary import InstructionRow, Node, Profile, Time

_ROWS = 30  # of operators and instructions
_TEXT_ROWS = 10


@dataclass(frozen=True)
class ModuleRow(Row):
    """A module, indented by its depth."""

    device: Annotated[float, Column("device", "nanoseconds", mark="inferred")]
    share: Annotated[float, Column("share", "share")]
    backward: Annotated[float | None, Column("backward", "nanoseconds")]
    module: Annotated[str, Column("module", "code")]
    inferred: bool


@dataclass(frozen=True)
class OperatorRow(Row):
    """An operator."""

    device: Annotated[float, Column("device", "nanoseconds", mark="inferred")]
    share: Annotated[float | None, Column("share", "share")]
    backward: Annotated[float | None, Column("backward", "nanoseconds")]
    times: Annotated[float, Column("times", "count")]
    ops: Annotated[float | None, Column("ops", "amount")]
    bytes: Annotated[float | None, Column("bytes", "bytes")]
    operator: Annotated[str, Column("operator", "code")]
    inferred: bool


@dataclass(frozen=True)
class KernelRow(Row):
    """An HLO instruction."""

    device: Annotated[float, Column("device", "nanoseconds", mark="inferred")]
    share: Annotated[float | None, Column("share", "share")]
    times: Annotated[float, Column("times", "count", text=False)]
    speed: Annotated[float | None, Column("ops/s", "amount", text=False)]
    traffic: Annotated[float | None, Column("bytes/s", "bytes", text=False)]
    reached: Annotated[float | None, Column("of the roof", "share", text=False)]
    opcode: Annotated[str, Column("opcode", "code")]
    instruction: Annotated[str, Column("instruction", "code", most=40)]
    program: Annotated[str, Column("program", "code", most=20)]
    lines: Annotated[str, Column("from")]
    inferred: bool


def page(profile: Profile, title: str, sources: list[Source]) -> Page:
    """The page. A terminal shows the breakdown and the tables."""
    code = [replace(source, in_text=False) for source in source_code(profile, sources, "Lines")]
    lines = slowest(code, "Lines, the slowest first", _TEXT_ROWS)
    unattributed = profile.unattributed.total
    if unattributed:
        lines = replace(
            lines,
            omitted=f"{duration(unattributed)} ({share(unattributed, profile.device)}) belong to no line.",
        )
    modules, operators, kernels = _modules(profile), _operators(profile), _kernels(profile)
    return replace(
        heading(profile, title),
        sections=(
            Chart("", None, text=lambda: _breakdown(profile), html=lambda: bars(profile)),
            *code,
            lines,
            Chart("", None, "Modules", html=lambda: flame(profile), opened=True),
            Table(
                "modules", columns(ModuleRow, modules), modules, "Modules", empty="", text_rows=20
            ),
            Chart("", None, "Timeline", html=lambda: timeline(profile), opened=True),
            Table(
                "operators",
                columns(OperatorRow, operators),
                operators,
                "Operators",
                empty="",
                omitted=_more(len(profile.operators)),
                text_rows=_TEXT_ROWS,
            ),
            Table(
                "kernels",
                columns(KernelRow, kernels),
                kernels,
                "Instructions",
                empty="",
                omitted=_more(len(profile.instructions)),
                text_rows=_TEXT_ROWS // 2,
            ),
            *_roofline(profile),
        ),
    )


def _more(count: int) -> str:
    return f"{count - _ROWS} more are not shown." if count > _ROWS else ""


def _breakdown(profile: Profile) -> str:
    lines = []
    for group in phases(profile):
        who = group.who
        for part in group.parts:
            time, of_wall = duration(part.time), share(part.time, profile.wall)
            lines.append(f"  {who:12}{part.name:10}{time:>9} {of_wall:>8}  {part.note}")
            who = ""
    return "\n".join(lines)


def _share(profile: Profile, time: Time) -> float | None:
    return time.total / profile.device if profile.device else None


def _modules(profile: Profile) -> list[ModuleRow]:
    rows: list[ModuleRow] = []

    def walk(node: Node, depth: int) -> None:
        time = node.time
        if time.total > profile.device / 200:
            rows.append(
                ModuleRow(
                    id=len(rows),
                    device=time.total,
                    share=time.total / profile.device,
                    backward=time.backward or None,
                    module="  " * depth + node.name,
                    inferred=is_estimate(time),
                )
            )
            for child in node.children:
                walk(child, depth + 1)

    for child in profile.tree.children:
        walk(child, 0)
    return rows


def _operators(profile: Profile) -> list[OperatorRow]:
    return [
        OperatorRow(
            id=row.name,
            device=row.time.total,
            share=_share(profile, row.time),
            backward=row.time.backward or None,
            times=row.time.count,
            ops=row.time.flops or None,
            bytes=row.time.bytes or None,
            operator=row.name,
            inferred=is_estimate(row.time),
        )
        for row in profile.operators[:_ROWS]
    ]


def _kernels(profile: Profile) -> list[KernelRow]:
    return [_kernel(profile, i, row) for i, row in enumerate(profile.instructions[:_ROWS])]


def _kernel(profile: Profile, number: int, row: InstructionRow) -> KernelRow:
    time, seconds, peak = row.time, row.time.total / 1e9, profile.peak
    speed = time.flops / seconds if seconds else None
    reached = None
    if peak is not None and speed:
        reached = speed / (peak.roof(time.flops / time.bytes) if time.bytes else peak.flops)
    return KernelRow(
        id=number,
        device=time.total,
        share=_share(profile, time),
        times=time.count,
        speed=speed,
        traffic=time.bytes / seconds if seconds else None,
        reached=reached,
        opcode=row.opcode,
        instruction=row.instruction,
        program=row.program,
        lines="; ".join(map(line_label, row.locations[:2]))
        + (" ..." if len(row.locations) > 2 else ""),
        inferred=is_estimate(time),
    )


def _roofline(profile: Profile) -> tuple[Section, ...]:
    peak = profile.peak
    if peak is None or not profile.roofline:
        return ()
    rows, title = roofline.rows(profile), roofline.heading(peak)
    drawing = Chart("", None, title, html=lambda: roofline.drawing(profile), opened=True)
    return drawing, Table("roofline", columns(roofline.RoofRow, rows), rows, title)
