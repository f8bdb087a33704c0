"""Formats a program: titles, figures and lines, shared by its text and HTML forms."""

from __future__ import annotations

from jaxtorch.insight.hlo.costs import Cost
from jaxtorch.insight.hlo.listing import Listing, short
from jaxtorch.insight.hlo.reading import LineCost, Reading, Source
from jaxtorch.insight.programs import ProgramInfo, programs

from .page import Page
from .units import amount, counted, size

TITLES = {"jaxpr": "jaxpr", "stablehlo": "StableHLO (before XLA)", "hlo": "HLO (after XLA)"}
COLUMNS = ("instr.", "FLOPs", "%", "transc.", "bytes")


def program_title(info: ProgramInfo) -> str:
    """A short title of a program."""
    part = f", {info.part}" if info.part else ""
    location = f", {info.location}" if info.location is not None else ""
    number = f"#{info.id} " if info.id > 0 else ""
    return f"{number}{info.title} ({info.kind}{part}{location})"


def heading(reading: Reading) -> Page:
    """The heading: the title of the program, its totals, its memory, and its warnings."""
    info, total = reading.program, reading.costs.total
    fused = sum(sum(f.parts.values()) for f in reading.fusions)
    facts = [
        f"{amount(total.flops)} FLOPs",
        f"{amount(total.transcendentals)} transcendentals",
        f"{size(total.bytes)} moved",
        f"{counted(len(reading.fusions), 'fusion')} of {counted(fused, 'instruction')}",
    ]
    memory = info.memory()
    if memory is not None:
        facts += [
            f"{size(memory.arguments)} arguments",
            f"{size(memory.outputs)} results"
            + (f" ({size(memory.alias)} in place of arguments)" if memory.alias else ""),
            f"{size(memory.temporary)} temporary",
        ]
    others = [p for p in programs() if p.source == info.source and p.id != info.id]
    warnings = []
    if info.kind == "eager":
        warnings.append(
            "All calls of the operator share this program; the line shown is the first that ran it."
        )
    elif others:
        facts.append("also " + ", ".join(f"#{p.id} {p.part or 'forward'}" for p in others[-4:]))
    guessed = len(reading.module.inferred)
    if guessed:
        warnings.append(
            f"XLA recorded no source location for {counted(guessed, 'instruction')}; their origin is inferred."
        )
    unknown = [f"{i.name} ({_why_unknown(i.opcode)})" for i in reading.costs.unknown]
    if unknown:
        more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        warnings.append(f"Unknown cost: {', '.join(unknown[:4])}{more}")
    return Page(f"Program {program_title(info)}", tuple(facts), tuple(warnings))


def _why_unknown(opcode: str) -> str:
    return "trip count unknown, counted once" if opcode == "while" else "library call, not counted"


def source_title(source: Source) -> str:
    """The title of a cell or a file."""
    return source.file if source.cell is None else f"Cell [{source.cell}]"


def cells(row: LineCost | None, total: Cost) -> tuple[str, ...]:
    """The values under `COLUMNS`. `transc.` counts transcendental functions: `exp`, `sin`, ..."""
    if row is None:
        return ("",) * len(COLUMNS)
    cost = row.cost
    part = f"{100 * cost.flops / total.flops:.0f}" if total.flops else ""
    return (
        str(row.instructions),
        amount(cost.flops),
        part,
        amount(cost.transcendentals),
        size(cost.bytes),
    )


def parts_of(parts: dict[str, int]) -> str:
    """The instructions inside a fusion, as text.

    Example:
        >>> from jaxtorch.widgets.hlo_format import parts_of
        >>> parts_of({"add": 2, "broadcast": 3, "dot": 1})
        '2 add, 1 dot'
    """
    minor = ("broadcast", "bitcast", "reshape", "tuple", "get-tuple-element", "copy")
    shown = {name: n for name, n in parts.items() if name not in minor} or parts
    return ", ".join(
        f"{n} {name}" for name, n in sorted(shown.items(), key=lambda p: (-p[1], p[0]))
    )


def chosen_lines(listing: Listing, line: int | None, grep: str) -> tuple[list[int], str]:
    """The lines of a listing to show, and a phrase for the filter. HLO starts with the entry computation."""
    chosen = list(range(len(listing.lines)))
    why = []
    if line is not None:
        chosen = [i for i in chosen if any(p.line == line for p in listing.locations[i])]
        why.append(f"come from line {line}")
    if grep:
        matching = set(listing.grep(grep))
        chosen = [i for i in chosen if i in matching]
        why.append(f"contain {grep!r}")
    if not why:
        entry = next((i for i in chosen if listing.lines[i].startswith("ENTRY ")), 0)
        chosen = chosen[entry:] + chosen[:entry]
    return chosen, " and ".join(why)


def shown_line(listing: Listing, i: int) -> str:
    """A line of a listing, shortened for a narrow view."""
    return short(listing.lines[i]) if listing.stage == "hlo" else listing.lines[i]


def file_name(info: ProgramInfo, stage: str) -> str:
    """The name of a file with a program's text."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in info.name)
    return f"{safe}.{info.id}.{'mlir' if stage == 'stablehlo' else stage + '.txt'}"


def full_text(reading: Reading, stage: str) -> str:
    """One stage of the program as JAX or XLA prints it. StableHLO and HLO include the locations."""
    if stage == "hlo":
        return reading.hlo_text
    if stage == "stablehlo":
        return reading.program.stablehlo() or ""
    return reading.listing(stage).text
