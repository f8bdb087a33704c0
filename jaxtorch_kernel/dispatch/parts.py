"""Eager calls over long lists of tensors (`_foreach_*`, fused optimizers), divided into parts (`partition.py`).

Each part is a call of the same operator over some positions of the lists, with a key and a program of its own. All
programs are compiled, and all arguments checked, before the first part runs; then all parts run in one step that Ctrl-C
cannot interrupt (`programs/atomic.py`). So an error leaves the tensors unchanged, as in one program.

A list is not divided if it is short, or if a buffer that is written occurs in it twice. Nor is it in a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Any

import torch

from ..base.jax_private import FAILURES
from ..programs import tracing, watching
from ..programs.atomic import Launch, kept_if_checked, run_all_into, was_replaced
from ..programs.errors import explain_call
from ..programs.site import origin
from ..programs.writes import DONATED_ERRORS
from ..storage.buffer import Buffer
from . import deferring, executable
from .call import Call, describe, first_positions, new_call
from .operands import Operand
from .partition import parts_of
from .program import Program, compile_all
from .results import flatten
from .running import prepared
from .schema import NUMBER, NUMBERS, TENSOR, TENSORS, Arguments

if TYPE_CHECKING:
    from .operation import Operation

Tensor = torch.Tensor
_SHORTEST = 16  # shorter lists are one program
_MOST_DIVISIONS = 4096
# The index among the tensors of a call, and the index among its numbers.
Indices = tuple[int | None, int | None]


@dataclass
class Part:
    """Some positions of the lists of a call.

    Attributes:
        positions: its positions.
        tensors: the indices of its tensors among those of the whole call.
        numbers: the indices of its numbers among those of the whole call.
        key: of its call.
    """

    positions: list[int]
    tensors: list[int]
    numbers: list[int]
    key: tuple[object, ...]


class Divisions:
    """The parts of one operator's calls, by the key of the whole call."""

    def __init__(self, operation: Operation):
        self._operation = operation
        kinds = operation.signature.kinds
        self._lists = [i for i, kind in enumerate(kinds) if kind in (TENSORS, NUMBERS)]
        self._known: dict[tuple[object, ...], list[Part]] = {}

    def find(self, call: Call) -> list[Part]:
        """The parts of a call; none if it is one program."""
        if max(map(len, self._lists_of(call.args)), default=0) < _SHORTEST:
            return []
        first = first_positions(call.buffers)
        key = (*call.key, *first)
        parts = self._known.get(key)
        if parts is None:
            parts = self._divided(call) if self._is_divisible(call, first) else []
            if len(self._known) >= _MOST_DIVISIONS:
                self._known.clear()
            self._known[key] = parts
        return parts

    def call_of(self, part: Part, call: Call) -> Call:
        """The call of one part."""
        return Call(
            self._arguments(call.args, part.positions),
            list(part.key),
            [call.tensors[i] for i in part.tensors],
            [call.buffers[i] for i in part.tensors],
            [call.numbers[i] for i in part.numbers],
        )

    def _lists_of(self, args: Arguments) -> list[Sequence[object]]:
        return [args[i] for i in self._lists if i < len(args) and args[i]]

    def _is_divisible(self, call: Call, first: Sequence[int]) -> bool:
        """Whether the lists have the same length, and no tensor that is written shares memory."""
        if len(set(map(len, self._lists_of(call.args)))) > 1:
            return False
        targets = {id(t) for i in self._operation.signature.written for t in flatten(call.args[i])}
        written = {first[i] for i, t in enumerate(call.tensors) if id(t) in targets}
        return sum(position in written for position in first) == len(written)

    def _divided(self, call: Call) -> list[Part]:
        operation = self._operation
        count = max(map(len, self._lists_of(call.args)))
        keys = [self._described(self._arguments(call.args, [i])).key for i in range(count)]
        numbered = any(
            kind == NUMBERS and a for kind, a in zip(operation.kinds, call.args, strict=False)
        )
        divided = parts_of([tuple(key) for key in keys], numbered)
        if len(divided) == 1:
            return []
        indices = self._indices(call)
        parts = []
        for positions in divided:
            part_call = self._described(self._arguments(call.args, positions))
            operation.complete_key(part_call)
            taken = [
                index
                for of_argument in indices
                for index in (
                    [of_argument[i] for i in positions] if len(of_argument) > 1 else of_argument
                )
            ]
            tensors = [tensor for tensor, _ in taken if tensor is not None]
            numbers = [number for _, number in taken if number is not None]
            parts.append(Part(positions, tensors, numbers, tuple(part_call.key)))
        return parts

    def _arguments(self, args: Arguments, positions: Sequence[int]) -> Arguments:
        """The arguments of a part."""
        return tuple(
            [a[p] for p in positions] if i in self._lists and a else a for i, a in enumerate(args)
        )

    def _described(self, args: Arguments) -> Call:
        operation = self._operation
        return describe(args, operation.kinds, operation.name, operation.copy_cpu)

    def _indices(self, call: Call) -> list[list[Indices]]:
        """For each argument the indices of its items, or of itself if it is not a list."""
        counted = new_call(call.args)
        operation = self._operation

        def add(kind: int, item: object) -> Indices:
            tensors, numbers = len(counted.tensors), len(counted.numbers)
            counted.add(kind, item, operation.name, operation.copy_cpu)
            return (
                tensors if len(counted.tensors) > tensors else None,
                numbers if len(counted.numbers) > numbers else None,
            )

        item_kinds = {TENSORS: TENSOR, NUMBERS: NUMBER}
        indices = []
        for i, (kind, a) in enumerate(zip(operation.kinds, call.args, strict=False)):
            items = a if i in self._lists and a else [a]
            indices.append([add(item_kinds.get(kind, kind), item) for item in items])
        return indices


def run_parts(operation: Operation, divisions: Divisions, parts: list[Part], call: Call) -> object:
    """Run the parts of a call on values; returns what the call returns."""
    pairs: list[tuple[Program, Call]] = []
    for part in parts:
        of_part_call = divisions.call_of(part, call)
        pairs.append(
            (
                operation.programs.find(tuple(of_part_call.key)) or operation.program(of_part_call),
                of_part_call,
            )
        )
    recorder = None if tracing.depth else deferring.recorder
    if recorder is None:
        compile_all(program for program, _ in pairs)
    if operation.signature.written:
        while recorder and pairs and recorder.call(operation, *pairs[0]) is not NotImplemented:
            del pairs[0]
        _run_written(operation, pairs)
        return None
    results: list[object] = [None] * sum(len(part.positions) for part in parts)
    for part, (program, of_part_call) in zip(parts, pairs, strict=True):
        of_part: Any = operation.run_program(program, of_part_call)
        for position, result in zip(part.positions, of_part, strict=True):
            results[position] = result
    return results


@dataclass
class _Prepared:
    """A program that writes, ready to run."""

    program: Program
    call: Call
    targets: list[Buffer]
    sources: list[Buffer]
    operands: list[Operand]


def _prepared(operation: Operation, program: Program, call: Call) -> _Prepared:
    program, targets, sources, operands = prepared(operation, program, call)
    program.compiled()
    return _Prepared(program, call, targets, sources, operands)


def _kept(prepared: _Prepared) -> Sequence[Operand]:
    return kept_if_checked(prepared.operands, prepared.program.operands.donated())


def _run_written(operation: Operation, pairs: list[tuple[Program, Call]]) -> None:
    """Run programs that write, all in one step."""
    while pairs:
        ready = [_prepared(operation, program, call) for program, call in pairs]
        launches = iter([partial(p.program.compiled(), *_kept(p)) for p in ready])
        try:
            _launch(ready, launches)
        except DONATED_ERRORS as error:
            failed = len(ready) - length_hint(launches) - 1
            this = ready[failed]
            if was_replaced(this.sources, this.operands):
                pairs = pairs[failed:]  # those before it have run
                continue
            if not isinstance(error, FAILURES):
                raise
            raise explain_call(error, this.program.name, this.call.buffers) from None
        for p in ready:
            _finish(p)
        return


def _launch(ready: list[_Prepared], launches: Iterator[Launch]) -> None:
    """Run the programs and store their outputs. As in `running.py`, specs are set first, and restored on failure."""
    for p in ready:
        watching.launching(p.program.executable.record)
    targets = list(chain.from_iterable(p.targets for p in ready))
    specs = chain.from_iterable(p.program.new_specs for p in ready)
    old = [(b, b.array, b.spec) for b in targets]
    try:
        for buffer, spec in zip(targets, specs, strict=True):
            buffer.spec = spec
        run_all_into(launches, targets)
    finally:
        for buffer, array, spec in old:
            if buffer.array is array:
                buffer.spec = spec


def _finish(p: _Prepared) -> None:
    record = p.program.executable.record
    if executable.counting and record is not None:
        record.calls += 1
    made_by = origin(p.program.origin)
    for buffer in p.targets:
        buffer.origin = made_by
        if watching.watcher is not None:
            watching.watcher.add_result(buffer)
