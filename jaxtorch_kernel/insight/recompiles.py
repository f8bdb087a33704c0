"""Groups the programs of `programs.py` by function, and explains why each function was retraced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..dispatch.operation import forget_programs
from ..programs import stats
from .programs import Location, ProgramInfo, location_of, program, programs, release

_NO_REASON = "JAX does not say why. `jax.config.update('jax_explain_cache_misses', True)` makes it log a reason."


_MANY = 8  # report an eager operator with more programs than this
_SHOWN = 3  # the number of its latest programs to explain
_SHAPES = (
    "Each input shape of an eager operator compiles a program: pad to a few sizes, or keep data whose shape changes at "
    "every step on the CPU."
)


@dataclass(frozen=True)
class Retrace:
    """One trace after the first.

    Attributes:
        nth: the number of the trace, from 2.
        what: the changes that caused the trace, one phrase each.
        advice: how to avoid it, one sentence for each entry of `what`; "" if there is nothing to do.
    """

    nth: int
    location: Location | None
    what: tuple[str, ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        where = f" ({self.location})" if self.location is not None else ""
        return f"trace {self.nth}{where}: {', '.join(self.what)}"


@dataclass(frozen=True)
class FunctionInfo:
    """Compiled torch or JAX code: a function, a cell, or all eager operators together.

    Attributes:
        id: its number, `ProgramInfo.source`.
        title: its display name; for a cell without a name, its first line.
        location: where it was traced last.
        calls, hits, traces: the number of all calls, of calls that found a program, and of calls that traced. The calls
            of eager operators and of plain `jax.jit` are not counted; `calls` is then the number of program runs.
        retraces: the latest hundred retraces, with their reasons.
        programs: the programs, the oldest first.
    """

    id: int
    name: str
    title: str
    kind: str
    location: Location | None
    calls: int
    hits: int
    traces: int
    retraces: tuple[Retrace, ...]
    programs: tuple[ProgramInfo, ...]

    @property
    def seconds(self) -> float:
        """The total compile time."""
        return sum(p.seconds for p in self.programs)


class Explanation(tuple[FunctionInfo, ...]):
    """The functions that were traced more than once. Its text lists each function and the reasons."""

    def __repr__(self) -> str:
        lines = []
        for function in self:
            lines.append(f"{function.title} ({function.kind}): traced {function.traces} times")
            if not function.retraces:
                lines.append(f"  {_NO_REASON}")
            advised = set()
            for retrace in function.retraces:
                lines.append(f"  {retrace}")
                for advice in retrace.advice:
                    if advice and advice not in advised:
                        advised.add(advice)
                        lines.append(f"    {advice}")
        return "\n".join(lines) or "Nothing was traced twice."


def functions(all_of_them: bool = False) -> list[FunctionInfo]:
    """The functions compiled in this session, in the order of their first program.

    Args:
        all_of_them: include the small array operations that the engine itself runs through JAX.
    """
    groups: dict[int, list[ProgramInfo]] = {}
    for info in programs():
        if all_of_them or info.kind != "engine":
            groups.setdefault(info.source, []).append(info)
    return [_function(group) for group in groups.values()]


def function_of(info: ProgramInfo) -> FunctionInfo:
    """The function that a program comes from."""
    return _function([p for p in programs() if p.source == info.source])


def named(name: str) -> list[FunctionInfo]:
    """The functions with this name, or the function with this number.

    Raises:
        LookupError: there is no such function. The message suggests the nearest name.
    """
    compiled = functions(all_of_them=True)
    wanted = name.removeprefix("#")
    matches = [
        f
        for f in compiled
        if name in (f.name, f.title) or (wanted.isdigit() and f.id == int(wanted))
    ]
    if not matches:
        matches = [f for f in compiled if f.id == program(name).source]
    return matches


def clear(functions: Iterable[FunctionInfo]) -> None:
    """Drop the programs of these functions. The next call traces and compiles again.

    Programs of plain `jax.jit` are only removed from the list, because JAX can only drop all programs at once
    (`jax.clear_caches`).
    """
    for function in functions:
        for info in function.programs:
            info._record.cleared = True
            release(info)
        source: stats.FunctionRecord = function.programs[0]._record.cause.function
        for cache in list(source.caches):
            cache.clear_cache()
        if function.kind == "eager":
            forget_programs()


def explain_recompiles(name: str | None = None) -> Explanation:
    """Why functions and cells were traced more than once, and how to avoid it.

    Args:
        name: explain only this function.

    Example:
        >>> import torch, jaxtorch
        >>> from jaxtorch.insight import explain_recompiles
        >>> @jaxtorch.pure
        ... def twice(images):
        ...     return images * 2
        >>> for n in (32, 7):
        ...     _ = twice(torch.ones(n, 4, device="jax"))
        >>> print(explain_recompiles("twice")[0].retraces[0].what)
        ('images[0] 32 -> 7',)
    """
    compiled = functions()
    retraced = [f for f in compiled if f.traces > 1]
    retraced += [o for f in compiled if f.kind == "eager" for o in _operators(f)]
    retraced = [f for f in retraced if name in (None, f.name, f.title)]
    return Explanation(sorted(retraced, key=lambda f: -f.traces))


def _operators(eager: FunctionInfo) -> list[FunctionInfo]:
    """The eager operators that were compiled for many shapes, each as a function."""
    groups: dict[str, list[ProgramInfo]] = {}
    for info in eager.programs:
        groups.setdefault(info.name, []).append(info)
    return [_operator(name, g) for name, g in groups.items() if len(g) > _MANY]


def _operator(name: str, group: list[ProgramInfo]) -> FunctionInfo:
    last = list(enumerate(pairwise(group), 2))[-_SHOWN:]
    retraces = tuple(
        Retrace(nth, now.location, (_difference(before, now),), (_SHAPES,))
        for nth, (before, now) in last
    )
    runs = sum(p.calls for p in group)
    return FunctionInfo(
        group[0].source,
        name,
        name,
        "eager",
        group[-1].location,
        runs,
        0,
        len(group),
        retraces,
        tuple(group),
    )


def _difference(before: ProgramInfo, now: ProgramInfo) -> str:
    if before.signature == now.signature:
        return "a different static argument (a size, a dimension, a dtype)"
    return f"{', '.join(before.signature)} -> {', '.join(now.signature)}"


@dataclass(frozen=True)
class Total:
    """The compile time of one line, or of one cell.

    Attributes:
        location: the line; for a cell, its first line that compiled a program. None if unknown (a backward pass).
    """

    location: Location | None
    programs: int
    seconds: float


def totals(infos: Iterable[ProgramInfo], by_cell: bool = False) -> list[Total]:
    """The compile time of each line, or of each cell, most expensive first."""
    groups: dict[object, list[ProgramInfo]] = {}
    for info in infos:
        location = info.location
        cell = location.cell if location is not None else None
        if by_cell and cell is None:
            continue
        groups.setdefault(cell if by_cell else location, []).append(info)
    sums = [Total(g[0].location, len(g), sum(p.seconds for p in g)) for g in groups.values()]
    return sorted(sums, key=lambda t: -t.seconds)


def _function(group: list[ProgramInfo]) -> FunctionInfo:
    source: stats.FunctionRecord = group[0]._record.cause.function
    retraces = []
    first = source.traces - len(source.history)
    for i, trace in enumerate(source.history, first + 1):
        if trace.reasons:
            what, advice = zip(*trace.reasons, strict=True)
            retraces.append(Retrace(i, location_of(trace.site), what, advice))
    calls = source.hits + source.traces if source.history else sum(p.calls for p in group)
    return FunctionInfo(
        group[0].source,
        source.name,
        source.title or source.name,
        source.kind,
        None if source.kind == "eager" else group[-1].location,
        calls,
        source.hits,
        source.traces,
        tuple(retraces),
        tuple(group),
    )
