"""The XLA programs of this session: their origin, their cost, and access to their contents.

`programs/compiling.py` records only what is known at no cost while a program is compiled. Everything else is read from
the program on request: jaxpr and StableHLO from the trace; optimized HLO, memory and FLOPs from the executable. The
list of programs does not keep them alive. When a program can no longer run, only its record remains, unless its text
was kept (`keep`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..base.jax_private import hlo_text
from ..base.naming import hlo_with_names, stablehlo_of
from ..programs import stats
from ..programs.site import cell_number
from .own_lines import lowered, own_hlo

# The kinds of programs other than captured code.
_RANKS = {"engine": 0, "eager": 1, "deferred": 1, "call_jax": 2, "jax.jit": 2}


@dataclass(frozen=True)
class Location:
    """A line of user code.

    Attributes:
        cell: execution count of the cell, if the file is a cell.
    """

    file: str
    line: int
    cell: int | None = None

    def __str__(self) -> str:
        if self.cell is not None:
            return f"cell [{self.cell}], line {self.line}"
        return f"{self.file}, line {self.line}"


def location_of(site: stats.Site | None) -> Location | None:
    """The `Location` of a recorded line, with its cell if the line is in a cell."""
    if site is None:
        return None
    file, line = site
    return Location(file, line, cell_number(file))


@dataclass(frozen=True)
class Memory:
    """The memory that XLA allocates for one run of a program, in bytes.

    Attributes:
        alias: outputs that reuse the memory of donated arguments.
        temporary: intermediate values.
        code: the machine code.
    """

    arguments: int
    outputs: int
    alias: int
    temporary: int
    code: int

    @property
    def peak(self) -> int:
        """The peak memory of one run, by XLA's plan."""
        return self.arguments + self.outputs - self.alias + self.temporary


@dataclass(frozen=True, eq=False)
class ProgramInfo:
    """One compiled XLA program.

    Attributes:
        id: its number in this session, from 1.
        name: the name of the operator, function or cell.
        title: its display name; for a cell without a name, its first line.
        kind: what compiled it: "eager", "pure", "jit", "compile", "scan", "call_jax"; "jax.jit" for the user's own JAX
            code; "engine" for the small array operations that jaxtorch itself runs through JAX.
        part: "" for a whole call, "saving" for a forward pass that saves residuals, or "backward".
        location: the line that requested it.
        calls: how often it ran; 0 if calls are not counted.
        hits: how many of these calls found it compiled.
        traces: how often its function was traced.
        persistent_hit: whether it came from XLA's persistent cache; None if unknown.
        reason: why the function was retraced for it; None if unknown or if it was the first trace.
        source: the number of its function; all programs of one function share it.
    """

    id: int
    name: str
    title: str
    kind: str
    part: str
    location: Location | None
    calls: int
    hits: int
    traces: int
    trace_seconds: float
    lowering_seconds: float
    xla_seconds: float
    persistent_hit: bool | None
    reason: str | None
    source: int
    _record: Any = field(repr=False)

    @property
    def seconds(self) -> float:
        """The total time to trace, lower and compile it."""
        return self.trace_seconds + self.lowering_seconds + self.xla_seconds

    @property
    def rank(self) -> int:
        """The priority as the default program to show: 3 for captured code, 0 for the engine's own programs."""
        return _RANKS.get(self.kind, 3)

    @property
    def captured(self) -> bool:
        """Whether it comes from captured code."""
        return self.rank == 3

    @property
    def alive(self) -> bool:
        """Whether it can still run."""
        return self._record.handle() is not None

    def stablehlo(self) -> str | None:
        """The input to XLA, with locations; None if the program is gone.

        The StableHLO of plain `jax.jit` code is lowered again from the jaxpr. It lacks donation and placement, because
        JAX does not expose them.
        """
        if (kept := _kept.get(self._record)) is not None:
            return kept.stablehlo
        return _ask_handle(
            self._record, lambda h: h.traced and stablehlo_of(lowered(h), debug_info=True)
        )

    def hlo_proto(self) -> bytes | None:
        """The optimized HLO, a serialized `HloModuleProto`; None if the program is gone."""
        if (kept := _kept.get(self._record)) is not None:
            return kept.hlo
        return _ask_handle(self._record, lambda h: own_hlo(self._record, h))

    def hlo_text(self, proto: bytes) -> str:
        """What `hlo_proto` returned, as XLA prints it."""
        return hlo_with_names(hlo_text(proto))

    def jaxpr(self) -> str | None:
        """The jaxpr, as JAX prints it; None if the program is gone."""
        if (kept := _kept.get(self._record)) is not None:
            return kept.jaxpr
        return _ask_handle(self._record, lambda h: h.traced and str(h.traced.jaxpr))

    def trace(self) -> Any:
        """The trace itself, a `jax.core.ClosedJaxpr`; None if the program is gone."""
        return _ask_handle(self._record, lambda h: h.traced and h.traced.jaxpr)

    def memory(self) -> Memory | None:
        """The memory of one run; None if XLA does not report it, or the program was gone before the first request."""
        return _cached_answer(
            self._record, "memory", lambda h: _memory(h.executable.memory_analysis())
        )

    def buffer_assignment(self) -> bytes | None:
        """The layout of its memory, a serialized `BufferAssignmentProto`; None if the program is gone."""
        return _ask_handle(self._record, lambda h: _buffers(h.executable.memory_analysis()))

    @property
    def code_bytes(self) -> int | None:
        """The size of the machine code; None if the program is gone or XLA does not report it."""
        memory = self.memory()
        return memory.code if memory is not None else None

    @property
    def signature(self) -> tuple[str, ...]:
        """Its inputs, such as "float32[32,784]"."""
        return tuple(map(_shown, self._record.avals))

    @property
    def flops(self) -> int | None:
        """Floating-point operations of one run as XLA counts them. A loop body counts once."""
        return _cached_answer(self._record, "flops", lambda h: _flops(h.executable.cost_analysis()))


@dataclass(frozen=True)
class _Kept:
    stablehlo: str | None
    hlo: bytes | None
    jaxpr: str | None


_kept: dict[Any, _Kept] = {}  # by record
_MOST_NAMES = 5  # in an error
_sources: dict[Any, int] = {}  # the numbers of the functions listed so far


def programs() -> list[ProgramInfo]:
    """The programs that were compiled in this session and not cleared, the oldest first.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.programs import programs
        >>> _ = torch.ones(3, device="jax").cosh()
        >>> "cosh.default" in {p.name for p in programs()}
        True
    """
    return [_info(record) for record in list(stats.compiled) if not record.cleared]


def call_counts() -> dict[int, int]:
    """How often each of `programs` has run, by its number. It costs little where many programs are compiled."""
    return {record.id: record.calls for record in list(stats.compiled) if not record.cleared}


def ran_since(before: dict[int, int]) -> list[ProgramInfo]:
    """The programs that have run since `call_counts` returned these."""
    records = [r for r in list(stats.compiled) if not r.cleared]
    return [_info(r) for r in records if r.calls > before.get(r.id, 0)]


def program(name_or_id: str | int) -> ProgramInfo:
    """The program with this number, or the latest one with this name.

    Raises:
        LookupError: there is no such program. The message suggests names.
    """
    compiled = programs()
    wanted = str(name_or_id).removeprefix("#")
    if wanted.isdigit():
        matches = [p for p in compiled if p.id == int(wanted)]
    else:
        # Prefer programs that are still alive, then those of the user, then forward over backward.
        matches = [p for p in compiled if wanted in (p.name, p.title)]
        matches.sort(key=lambda p: (p.alive, p.kind != "engine", p.part != "backward"))
    if matches:
        return matches[-1]
    if not compiled:
        raise LookupError("nothing has been compiled in this session yet")
    if wanted.isdigit():
        raise LookupError(f"there is no program #{wanted}; the last is #{compiled[-1].id}")
    captured = dict.fromkeys(p.name for p in compiled if p.kind not in ("eager", "engine"))
    eager = dict.fromkeys(p.name for p in compiled if p.kind == "eager")
    near = difflib.get_close_matches(wanted, [*captured, *eager], 1)
    if near:
        raise LookupError(f"no program is named {wanted!r}. The nearest is {near[0]!r}")
    if not captured:
        raise LookupError(f"no program is named {wanted!r}: no code has been captured yet")
    some = ", ".join(list(captured)[-_MOST_NAMES:])
    raise LookupError(f"no program is named {wanted!r}. The latest captured ones are {some}")


def latest() -> ProgramInfo | None:
    """The program to show by default: the latest of captured code that can still run.

    Otherwise the latest of the user's JAX code, or of an eager operator. A forward program is preferred to its backward
    program, which is compiled after it.
    """
    alive = [p for p in programs() if p.alive]
    return max(alive, key=lambda p: (p.rank, p.part != "backward", p.id), default=None)


def keep(info: ProgramInfo) -> None:
    """Keep a program's jaxpr, StableHLO and HLO after the program is gone.

    Raises:
        LookupError: it is already gone.
    """
    if info._record in _kept:
        return
    if not info.alive:
        raise LookupError(
            f"{info.name} is gone: it can no longer run. Keep a program while its function is alive."
        )
    _kept[info._record] = _Kept(info.stablehlo(), info.hlo_proto(), info.jaxpr())


def release(info: ProgramInfo) -> None:
    """Undo `keep`."""
    _kept.pop(info._record, None)


def kept(info: ProgramInfo) -> bool:
    """Whether the text of a program is kept."""
    return info._record in _kept


def kept_count() -> int:
    """How many programs are kept."""
    return len(_kept)


def _info(record: stats.ProgramRecord) -> ProgramInfo:
    source = record.cause.function
    return ProgramInfo(
        record.id,
        record.name,
        source.title or record.name,
        source.kind,
        record.part,
        location_of(record.site),
        record.calls,
        max(0, record.calls - 1),
        source.traces,
        record.trace,
        record.lowering,
        record.xla,
        record.persistent_hit,
        ", ".join(reason.what for reason in record.cause.reasons) or None,
        _sources.setdefault(source, len(_sources) + 1),
        record,
    )


def _shown(aval: Any) -> str:
    """
    Example:
        >>> import jax, numpy as np
        >>> _shown(jax.ShapeDtypeStruct((32, 784), np.dtype("float32")))
        'float32[32,784]'
    """
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _ask_handle(record: stats.ProgramRecord, ask: Callable[[Any], Any]) -> Any:
    handle = record.handle()
    return None if handle is None else ask(handle)


_answers: dict[tuple[Any, str], Any] = {}


def _cached_answer(record: stats.ProgramRecord, question: str, ask: Callable[[Any], Any]) -> Any:
    """Like `_ask_handle`, but caches the answer, because a live view requests it ten times a second."""
    key = record, question
    if key not in _answers:
        handle = record.handle()
        if handle is None:
            return None
        _answers[key] = ask(handle)
    return _answers[key]


def _memory(analysis: Any) -> Memory | None:
    if analysis is None:
        return None
    return Memory(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
        analysis.generated_code_size_in_bytes,
    )


def _buffers(analysis: Any) -> bytes | None:
    return getattr(analysis, "serialized_buffer_assignment_proto", None) or None


def _flops(costs: Any) -> int | None:
    flops = (costs or {}).get("flops")
    return int(flops) if flops is not None and flops >= 0 else None
