"""The result of `%jax time`: the first run and the later runs of a piece of code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .page import Fact, Facts, Page
from .units import counted, written
from .view import PageView

if TYPE_CHECKING:
    from jaxtorch.insight.programs import ProgramInfo
    from jaxtorch.insight.timing import Loops, Timing


class TimingView(PageView):
    """Shows a `Timing`. It has no live form, because it never changes."""

    kind = ""

    def __init__(self, timing: Timing):
        self.timing = timing

    def page(self) -> Page:
        timing = self.timing
        warm: tuple[str, ...] = _warm(timing.warm)
        if not timing.steady:
            warm = (
                *warm,
                "every run still compiled something: see %jax cache for the reason",
            )
        facts = [
            Fact("Cold", (written(timing.cold, "seconds"), _compiled(timing.compiled))),
            Fact("Warm", warm),
        ]
        if timing.later:
            runs = counted(timing.warmups, "more run")
            facts.insert(1, Fact("Warm-up", (f"{runs}: {_compiled(timing.later)}",)))
        return Page("", sections=(Facts(tuple(facts)),))


def _compiled(programs: Sequence[ProgramInfo]) -> str:
    if not programs:
        return "nothing was compiled"
    steps = {
        "trace": sum(p.trace_seconds for p in programs),
        "lowering": sum(p.lowering_seconds for p in programs),
        "XLA": sum(p.xla_seconds for p in programs),
    }
    times = ", ".join(f"{name} {written(seconds, 'seconds')}" for name, seconds in steps.items())
    hits = sum(p.persistent_hit is True for p in programs)
    cached = f", {hits} found in the persistent cache" if hits else ""
    return f"{counted(len(programs), 'program')} compiled: {times}{cached}"


def _warm(loops: Loops) -> tuple[str, str]:
    measured = f"{counted(len(loops.totals), 'measurement')} of {counted(loops.loops, 'run')}"
    spread = f"fastest {written(min(loops.seconds), 'seconds')}"
    return (
        f"{written(loops.mean, 'seconds')} ± {written(loops.deviation, 'seconds')} a run",
        f"{measured}, {spread}",
    )
