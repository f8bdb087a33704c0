"""The optimized HLO of a program, with the source lines of its own trace.

The key of XLA's persistent cache leaves out source lines. So a program from the cache has the source lines of the
session or cell that compiled it first. When the HLO of such a program is requested, the program is compiled again from
its own trace, without the cache. The instructions are the same, and the source lines are correct.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax

from ..base.jax_private import as_if_at, compile_with_own_lines, hlo_proto, without_lowering
from ..programs import stats
from ..programs.compiling import phase
from .hlo.module import read_module
from .hlo.wire import fields


def lowered(handle: Any) -> Any:
    """Lower the program again: its StableHLO is not kept after use."""
    with jax.enable_x64(True), as_if_at(handle.stack):
        return without_lowering(handle.traced).lower()  # not kept after use


def own_hlo(record: stats.ProgramRecord, handle: Any) -> bytes | None:
    """The HLO with the source lines of its own trace, and with the id of the running module."""
    running = hlo_proto(handle.executable)
    has_own_lines = record.persistent_hit is False or handle.traced is None
    if running is None or has_own_lines or not _cache_in_use():
        return running
    cached = _traced_hlo.setdefault(handle.traced.jaxpr, {})
    if record not in cached:
        with phase(record.name, "XLA"):
            cached[record] = hlo_proto(compile_with_own_lines(lowered(handle), handle.options))
    traced = cached[record]
    # A `jax.jit` program is lowered again from its jaxpr alone, and may differ from the running one.
    if traced is None or (
        record.cause.function.kind == "jax.jit" and not _equal_instructions(traced, running)
    ):
        return running
    number = module_id(running)
    # Append the id. If a message has a scalar field twice, its last value is valid.
    return traced if number is None else traced + b"\x28" + _varint(number)


# Trace -> record -> the HLO with the trace's own source lines. Filled on request.
_traced_hlo: weakref.WeakKeyDictionary[Any, dict[Any, bytes | None]] = weakref.WeakKeyDictionary()


def _equal_instructions(first: bytes, second: bytes) -> bool:
    """Whether two modules have the same instructions with the same names. Names of arguments may differ."""
    instructions = [
        [
            (i.name if i.opcode != "parameter" else "", i.opcode, i.shape.text)
            for i in read_module(proto).instructions.values()
        ]
        for proto in (first, second)
    ]
    return instructions[0] == instructions[1]


def _cache_in_use() -> bool:
    options: Any = jax.config
    return bool(options.jax_compilation_cache_dir) and bool(options.jax_enable_compilation_cache)


def module_id(proto: bytes) -> int | None:
    r"""`HloModuleProto.id` (field 5), which identifies a program in a profile.

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
