"""The XLA programs of this session: what each is, what it cost, and a way to look inside.

What is recorded while a program is compiled (`programs/compiling.py`) is all that is known at no cost. Everything else
is asked of the program itself: its jaxpr and its StableHLO of the trace, its optimized HLO, memory and FLOPs of the
executable. None of that is kept alive by being listed, so that a program that nobody can run any more has only its
record, unless its HLO was kept (`keep`).

A program that XLA's persistent cache had comes back with the source lines of whoever compiled it first, another
session or another cell, because the cache's key leaves them out. Where its HLO is asked for, it is compiled once more
from its own trace, past the cache: the same instructions, with the lines that are true.
"""

from __future__ import annotations

import difflib
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from ..base.jax_private import as_if_at, compile_with_own_lines, hlo_proto, without_lowering
from ..programs import stats
from ..programs.compiling import phase
from .hlo.module import read_module
from .hlo.wire import fields

_CELL = re.compile(r"<ipython-input-(\d+)-")


@dataclass(frozen=True)
class Place:
    """A line of the user's.

    Attributes:
        cell: execution count of the cell, where the file is a cell's.
    """

    file: str
    line: int
    cell: int | None = None

    def __str__(self) -> str:
        if self.cell is not None:
            return f"cell [{self.cell}], line {self.line}"
        return f"{self.file}, line {self.line}"


# How a notebook numbers the files of its cells; the extension sets it.
cell_of_file: list[Callable[[str], int | None]] = []


def place_of(site: stats.Site | None) -> Place | None:
    """A recorded line, with its cell."""
    if site is None:
        return None
    file, line = site
    for number in cell_of_file:
        found = number(file)
        if found is not None:
            return Place(file, line, found)
    named = _CELL.match(file)
    return Place(file, line, int(named[1]) if named else None)


@dataclass(frozen=True)
class Memory:
    """What XLA sets aside for one run of a program, in bytes.

    Attributes:
        alias: of the outputs, what lies in the memory of donated arguments.
        temporary: for what is computed on the way.
        code: the program itself.
    """

    arguments: int
    outputs: int
    alias: int
    temporary: int
    code: int

    @property
    def peak(self) -> int:
        """The most that one run holds at once, by XLA's plan."""
        return self.arguments + self.outputs - self.alias + self.temporary


@dataclass(frozen=True, eq=False)
class ProgramInfo:
    """One compiled XLA program.

    Attributes:
        id: its number in this session, from 1 on.
        name: of the operator, function or cell.
        kind: by what it was compiled: "eager", "pure", "jit", "cell", "compile", "scan", "call_jax", or "jax.jit" for
            JAX code of the user's.
        part: "" for a whole call, "saving" for a forward pass that keeps what the backward pass needs, "backward".
        place: the line that asked for it.
        calls: how often it ran, as far as that was counted.
        hits: how many of those found it compiled.
        traces: how often what it comes from was traced.
        signature: its inputs, as "float32[32,784]".
        persistent_hit: whether XLA's work came from the persistent cache; None where it is not known.
        reason: why it was traced although there was a program of that function.
        source: the number of what it comes from: all programs of one function have the same.
    """

    id: int
    name: str
    kind: str
    part: str
    place: Place | None
    calls: int
    hits: int
    traces: int
    trace_seconds: float
    lowering_seconds: float
    xla_seconds: float
    signature: tuple[str, ...]
    persistent_hit: bool | None
    reason: str | None
    source: int
    _record: Any = field(repr=False)

    @property
    def seconds(self) -> float:
        """All that it took until it could run."""
        return self.trace_seconds + self.lowering_seconds + self.xla_seconds

    @property
    def alive(self) -> bool:
        """Whether somebody can still run it."""
        return self._record.handle() is not None

    def stablehlo(self) -> str | None:
        """What was given to XLA, with locations; None where it is gone.

        Of plain `jax.jit` it is made again from the jaxpr, without donation and placement, which JAX does not tell.
        """
        if (kept := _kept.get(self._record)) is not None:
            return kept.stablehlo
        return _of_handle(self._record, lambda h: h.traced and _lowered(h).as_text(debug_info=True))

    def hlo_proto(self) -> bytes | None:
        """What XLA made of it, a serialized `HloModuleProto`; None where it is gone."""
        if (kept := _kept.get(self._record)) is not None:
            return kept.hlo
        return _of_handle(self._record, lambda h: _hlo(self._record, h))

    def jaxpr(self) -> str | None:
        """The trace, as JAX prints it; None where it is gone."""
        if (kept := _kept.get(self._record)) is not None:
            return kept.jaxpr
        return _of_handle(self._record, lambda h: h.traced and str(h.traced.jaxpr))

    def trace(self) -> Any:
        """The trace itself, a `jax.core.ClosedJaxpr`; None where it is gone."""
        return _of_handle(self._record, lambda h: h.traced and h.traced.jaxpr)

    def memory(self) -> Memory | None:
        """What a run of it takes; None where XLA does not say, or it was gone before anybody asked."""
        return _asked(self._record, "memory", lambda h: _memory(h.executable.memory_analysis()))

    def buffer_assignment(self) -> bytes | None:
        """Which value lies where in its memory, a serialized `BufferAssignmentProto`; None where it is gone."""
        return _of_handle(self._record, lambda h: _buffers(h.executable.memory_analysis()))

    @property
    def code_bytes(self) -> int | None:
        """The size of the machine code; None where it is gone or XLA does not say."""
        memory = self.memory()
        return memory.code if memory is not None else None

    @property
    def flops(self) -> int | None:
        """Floating point operations of one run, as XLA counts: bodies of loops once."""
        return _asked(self._record, "flops", lambda h: _flops(h.executable.cost_analysis()))


@dataclass(frozen=True)
class _Kept:
    stablehlo: str | None
    hlo: bytes | None
    jaxpr: str | None


_kept: dict[Any, _Kept] = {}  # by record
_sources: dict[Any, int] = {}  # numbers of the sources listed so far


def programs() -> list[ProgramInfo]:
    """Every program compiled in this session and not cleared from the list, the oldest first.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.programs import programs
        >>> _ = torch.ones(3, device="jax").cosh()
        >>> "cosh.default" in {p.name for p in programs()}
        True
    """
    return [_info(record) for record in list(stats.compiled) if not record.cleared]


def program(name_or_id: str | int) -> ProgramInfo:
    """The program of this number, or the latest of this name.

    Raises:
        LookupError: there is none; the message has the nearest name.
    """
    known = programs()
    wanted = str(name_or_id).removeprefix("#")
    if wanted.isdigit():
        found = [p for p in known if p.id == int(wanted)]
    else:
        # Forward before backward, what can still be looked at before what cannot.
        found = [p for p in known if p.name == wanted]
        found.sort(key=lambda p: (p.alive, p.part != "backward"))
    if found:
        return found[-1]
    if not known:
        raise LookupError("nothing was compiled yet in this session")
    if wanted.isdigit():
        raise LookupError(f"there is no program #{wanted}; the last is #{known[-1].id}")
    names = list(dict.fromkeys(p.name for p in known))
    near = max(names, key=lambda n: difflib.SequenceMatcher(None, wanted, n).ratio())
    raise LookupError(f"no program is named {wanted!r}. The nearest is {near!r}")


def keep(info: ProgramInfo) -> None:
    """Hold on to a program's text: its jaxpr, StableHLO and HLO stay when it is gone.

    Raises:
        LookupError: it is gone already.
    """
    if info._record in _kept:
        return
    if not info.alive:
        raise LookupError(
            f"{info.name} is gone: nobody can run it any more. Keep a program while its function lives."
        )
    _kept[info._record] = _Kept(info.stablehlo(), info.hlo_proto(), info.jaxpr())


def release(info: ProgramInfo) -> None:
    """Undo `keep`."""
    _kept.pop(info._record, None)


def kept(info: ProgramInfo) -> bool:
    """Whether `keep` holds its text."""
    return info._record in _kept


def kept_count() -> int:
    """How many programs are kept."""
    return len(_kept)


def _info(record: stats.Compiled) -> ProgramInfo:
    source = record.cause.source
    return ProgramInfo(
        record.id,
        record.name,
        source.kind,
        record.part,
        place_of(record.site),
        record.calls,
        max(0, record.calls - 1),
        source.traces,
        record.trace,
        record.lowering,
        record.xla,
        tuple(map(_shown, record.avals)),
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


def _of_handle(record: stats.Compiled, ask: Callable[[Any], Any]) -> Any:
    handle = record.handle()
    return None if handle is None else ask(handle)


_answers: dict[tuple[Any, str], Any] = {}


def _asked(record: stats.Compiled, question: str, ask: Callable[[Any], Any]) -> Any:
    """As `_of_handle`, asked once: a live view shows the answer ten times a second."""
    key = record, question
    if key not in _answers:
        handle = record.handle()
        if handle is None:
            return None
        _answers[key] = ask(handle)
    return _answers[key]


def _lowered(handle: Any) -> Any:
    with jax.enable_x64(True), as_if_at(handle.stack):
        return without_lowering(handle.traced).lower()  # which goes when it was looked at


def _hlo(record: stats.Compiled, handle: Any) -> bytes | None:
    """The HLO with the lines of its own trace, under the number of the module that runs."""
    running = hlo_proto(handle.executable)
    mine = record.persistent_hit is False or handle.traced is None
    if running is None or mine or not _cache_in_use():
        return running
    known = _own.setdefault(handle.traced.jaxpr, {})
    if record not in known:
        with phase(record.name, "XLA"):
            known[record] = hlo_proto(compile_with_own_lines(_lowered(handle)))
    own = known[record]
    # A program of `jax.jit` is lowered again from its jaxpr alone, and may be another than the one that runs.
    if own is None or (record.cause.source.kind == "jax.jit" and not _alike(own, running)):
        return running
    number = module_id(running)
    # Of a scalar that a message has twice, the last counts.
    return own if number is None else own + b"\x28" + _varint(number)


# Of a trace, the HLO of its programs with its own lines, once somebody has asked for it.
_own: weakref.WeakKeyDictionary[Any, dict[Any, bytes | None]] = weakref.WeakKeyDictionary()


def _alike(first: bytes, second: bytes) -> bool:
    """Whether two modules have the same instructions, under the same names but for arguments."""
    looks = [
        [
            (i.name if i.opcode != "parameter" else "", i.opcode, i.shape.text)
            for i in read_module(proto).instructions.values()
        ]
        for proto in (first, second)
    ]
    return looks[0] == looks[1]


def _cache_in_use() -> bool:
    options: Any = jax.config
    return bool(options.jax_compilation_cache_dir) and bool(options.jax_enable_compilation_cache)


def module_id(proto: bytes) -> int | None:
    r"""`HloModuleProto.id` (its field 5), by which a profile names a program.

    Example:
        >>> module_id(b"\x0a\x01m\x28\x96\x01")
        150
    """
    return dict(fields(proto)).get(5)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _memory(found: Any) -> Memory | None:
    if found is None:
        return None
    return Memory(
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.alias_size_in_bytes,
        found.temp_size_in_bytes,
        found.generated_code_size_in_bytes,
    )


def _buffers(found: Any) -> bytes | None:
    return getattr(found, "serialized_buffer_assignment_proto", None) or None


def _flops(found: Any) -> int | None:
    counted = (found or {}).get("flops")
    return int(counted) if counted is not None and counted >= 0 else None
