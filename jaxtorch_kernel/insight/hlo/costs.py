"""The costs of instructions: floating-point operations, transcendental functions, bytes moved.

XLA's `cost_analysis()` reports only the totals of a program, and it counts a loop body once. This module gives the
costs of each instruction. It follows XLA's counting rules, but counts a loop body as often as it runs (`trips.py`):

* An elementwise addition or multiplication counts as one operation per element, a multiply-add as two. `exp`, `tanh`
  and the like are counted separately.
* A convolution counts only window positions on the input, not those in the padding.
* Values inside a fusion move no bytes: a fusion reads its operands once and writes its result once. A slice reads only
  the elements it selects, and an in-place update writes only the elements it changes.
* Every side of a branch counts once, so the cost of a branch is an upper bound.
* A loop with an unknown trip count counts once. `Costs.unknown` lists these loops, and the library calls whose work is
  unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from .module import RUNS_INSIDE, Computation, Instruction, Module, Shape
from .trips import Trips
from .work import NOTHING as NOTHING
from .work import Cost as Cost
from .work import Work, name_set

# Opcodes that move no bytes: they only refer to values, or the computations they run are counted separately.
_FREE = name_set(
    """
    parameter constant tuple get-tuple-element bitcast after-all opt-barrier while call conditional
    add-dependency partition-id replica-id async-start async-update async-done copy-done send-done recv-done
    all-gather-done all-reduce-done collective-permute-done domain get-dimension-size
    """
)
_SLICES = frozenset(("slice", "dynamic-slice", "gather"))


class Costs:
    """The costs of a module's instructions.

    Args:
        module: the module.
        size: the bytes of a value that move whenever it is read or written; by default those of its elements.
        counted: whether the reads and writes of a value count; by default they do, whichever memory it is in.
    """

    def __init__(
        self,
        module: Module,
        size: Callable[[Shape], float] = lambda shape: shape.bytes,
        counted: Callable[[Shape], bool] = lambda shape: True,
    ):
        self.module = module
        self._size, self._counted = size, counted
        self.trips = Trips(module)
        self._work = Work(module)
        self._cache: dict[int, Cost] = {}
        self._spread: dict[int, list[tuple[Instruction, Cost]]] = {}

    @cached_property
    def total(self) -> Cost:
        """The cost of one run of the program."""
        return self._of_computation(self.module.entry)

    def of(self, instruction: Instruction) -> Cost:
        """The cost of one run of an instruction and of the computations it runs. A loop includes all its iterations."""
        cost = self._cache.get(instruction.id)
        if cost is None:
            cost = self._self_cost(instruction)
            times = self._times(instruction)
            if instruction.opcode in RUNS_INSIDE:
                for called in instruction.calls:
                    cost = cost.plus(
                        self._of_computation(self.module.computations[called]).times(times)
                    )
            self._cache[instruction.id] = cost
        return cost

    @cached_property
    def runs(self) -> dict[int, int]:
        """How often each unfused computation runs in one run of the program, by its id."""
        counts: dict[int, int] = {}

        def visit(computation: Computation, times: int) -> None:
            counts[computation.id] = counts.get(computation.id, 0) + times
            for instruction in computation.instructions:
                if instruction.opcode in RUNS_INSIDE:
                    rounds = self._times(instruction)
                    for called in instruction.calls:
                        visit(self.module.computations[called], times * rounds)

        visit(self.module.entry, 1)
        return counts

    def _times(self, instruction: Instruction) -> int:
        """How often the computations of an instruction run each time it runs."""
        if instruction.opcode != "while":
            return 1
        count = self.trips.of(instruction)
        return 1 if count is None else count

    def executed(self) -> Iterator[tuple[Instruction, int]]:
        """The instructions outside of fusions, each with the number of times it runs."""
        for number, times in self.runs.items():
            for instruction in self.module.computations[number].instructions:
                yield instruction, times

    def spread(self, instruction: Instruction) -> Sequence[tuple[Instruction, Cost]]:
        """The cost of one run, split over the fused instructions: reads count at the reader, the write at the producer.

        For any other instruction, the only part is the instruction itself, without the computations it runs. The parts
        add up to that cost.
        """
        if instruction.opcode != "fusion":
            return [(instruction, self._self_cost(instruction))]
        parts = self._spread.get(instruction.id)
        if parts is None:
            fused = self.module.computations[instruction.calls[0]]
            moved: dict[int, float] = {}
            for inner, count in self._moved_by_fusion(fused):
                moved[inner.id] = moved.get(inner.id, 0.0) + count
            parts = self._spread[instruction.id] = []
            for inner in fused.instructions:
                work = self._work.of(inner)
                inner_cost = Cost(work.flops, work.transcendentals, moved.get(inner.id, 0.0))
                parts.append((inner, inner_cost))
        return parts

    @cached_property
    def unknown(self) -> list[Instruction]:
        """The loops with an unknown trip count, which count once, and the library calls that count nothing."""
        return [
            i
            for i, _ in self.executed()
            if (i.opcode == "while" and self.trips.of(i) is None)
            or (i.opcode == "custom-call" and not self._work.of(i).flops)
        ]

    # -- of one instruction -----------------------------------------------------------------------------------

    def _of_computation(self, computation: Computation) -> Cost:
        total = NOTHING
        for instruction in computation.instructions:
            if instruction.opcode not in _FREE or instruction.opcode in RUNS_INSIDE:
                total = total.plus(self.of(instruction))
        return total

    def _self_cost(self, instruction: Instruction) -> Cost:
        """The cost without the computations that a loop, a branch or a call runs."""
        if instruction.opcode == "fusion":
            total = NOTHING
            for _, cost in self.spread(instruction):
                total = total.plus(cost)
            return total
        work = self._work.of(instruction)
        return Cost(work.flops, work.transcendentals, self._moved(instruction))

    # -- bytes ------------------------------------------------------------------------------------------------

    def _moved(self, instruction: Instruction) -> float:
        opcode, out = instruction.opcode, instruction.shape
        if opcode in _FREE:
            return 0.0
        if opcode == "copy-start":  # its result is a tuple that also contains the source
            return self._bytes(out.parts[0]) + self._bytes(out.parts[1])
        if opcode in _SLICES:
            source = self._work.operand(instruction, 0)
            return self._bytes(out, of=source) + self._bytes(out) + self._operands(instruction, 1)
        if opcode in _UPDATES:
            first = _UPDATES[opcode](instruction)
            return self._updated(instruction) + self._operands(instruction, first)
        return self._bytes(out) + self._operands(instruction, 0)

    def _operands(self, instruction: Instruction, first: int) -> float:
        """The bytes of the operands from the given one on."""
        indices = range(first, len(instruction.operands))
        return sum(self._bytes(self._work.operand(instruction, i)) for i in indices)

    def _bytes(self, shape: Shape, of: Shape | None = None) -> float:
        """The bytes that move to read or write a value, which may be a part of another; 0 if they do not count."""
        if shape.parts:
            return sum(map(self._bytes, shape.parts))
        return float(self._size(shape)) if self._counted(of or shape) else 0.0

    def _updated(self, instruction: Instruction) -> float:
        """The bytes that an in-place update writes."""
        if instruction.opcode == "scatter":
            arrays = len(instruction.operands) // 2
            updates = range(arrays + 1, 2 * arrays + 1)
        else:
            updates = range(1, 2)
        parts = instruction.shape.parts or (instruction.shape,)
        written = zip(updates, parts, strict=False)
        return sum(self._bytes(self._work.operand(instruction, i), of=p) for i, p in written)

    def _moved_by_fusion(self, fused: Computation) -> Iterator[tuple[Instruction, float]]:
        """Yield (instruction, bytes it moves) for the instructions of a fusion that move bytes."""
        instructions = self.module.instructions
        for parameter in fused.instructions:
            if parameter.opcode != "parameter":
                continue
            readers = self._readers(parameter)
            counts = [self._read(reader, parameter, parameter.shape) for reader in readers]
            whole = [r for r, count in zip(readers, counts, strict=True) if count is None]
            for reader, count in zip(readers, counts, strict=True):
                if count is not None and not whole:
                    yield reader, count
            for reader in whole:  # the fusion reads it once for all of them
                yield reader, self._bytes(parameter.shape) / len(whole)
        root = instructions[fused.root]
        results = [instructions[i] for i in root.operands] if root.opcode == "tuple" else [root]
        for result in results:
            producer = self._producer(result)
            in_place = producer.opcode in _UPDATES
            yield (
                result if result.opcode == "fusion" else producer,
                self._updated(producer) if in_place else self._bytes(result.shape),
            )

    def _readers(self, value: Instruction) -> list[Instruction]:
        return [self.module.instructions[u] for u in self.module.users.get(value.id, ())]

    def _producer(self, result: Instruction) -> Instruction:
        """The instruction that computes a fused value, which may be in a fusion inside."""
        while result.opcode in ("bitcast", "fusion"):
            if result.opcode == "bitcast":
                result = self.module.instructions[result.operands[0]]
            else:
                inner = self.module.computations[result.calls[0]]
                result = self.module.instructions[inner.root]
        return result

    def _read(self, reader: Instruction, value: Instruction, source: Shape) -> float | None:
        """The bytes of a parameter's value that a fused instruction reads; None if it reads all of it.

        Args:
            source: the parameter of the whole fusion.
        """
        if reader.opcode == "bitcast":
            return self._reads(reader, source)
        if reader.opcode == "fusion":
            inner = self.module.computations[reader.calls[0]].instructions
            counts = [
                self._reads(p, source)
                for p in inner
                if p.opcode == "parameter" and reader.operands[p.fields.get(9, 0)] == value.id
            ]
            known = [count for count in counts if count is not None]
            return sum(known) if len(known) == len(counts) else None
        if value.id in reader.operands[1:]:
            return None
        if reader.opcode in _SLICES:
            return self._bytes(reader.shape, of=source)
        return 0.0 if reader.opcode in _UPDATES else None

    def _reads(self, value: Instruction, source: Shape) -> float | None:
        """The bytes of a parameter that the readers of its value read; None if one of them reads all of it."""
        counts = [self._read(reader, value, source) for reader in self._readers(value)]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) and counts else None


# The index of the first operand that an in-place update reads in full.
_UPDATES: dict[str, Callable[[Instruction], int]] = {
    "dynamic-update-slice": lambda i: 1,
    "scatter": lambda i: len(i.operands) // 2,
}
