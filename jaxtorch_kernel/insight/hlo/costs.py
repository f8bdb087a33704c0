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

from .module import RUNS_INSIDE, Computation, Instruction, Module
from .trips import Trips
from .work import NOTHING as NOTHING
from .work import Cost as Cost
from .work import Work, name_set

# Opcodes that move no bytes: they only refer to values, or the computations they run are counted separately.
_FREE = name_set(
    """
    parameter constant tuple get-tuple-element bitcast after-all opt-barrier while call conditional
    add-dependency partition-id replica-id async-update async-done copy-done send-done recv-done all-gather-done
    all-reduce-done collective-permute-done domain get-dimension-size
    """
)
_SLICES = frozenset(("slice", "dynamic-slice", "gather"))


class Costs:
    """The costs of a module's instructions."""

    def __init__(self, module: Module):
        self.module = module
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
        opcode, out = instruction.opcode, float(instruction.shape.bytes)
        if opcode in _FREE:
            return 0.0
        if opcode == "copy-start":  # its result is a tuple that also contains the source
            return 2.0 * self._work.operand(instruction, 0).bytes
        if opcode in _SLICES:
            return 2 * out + sum(
                self._work.operand(instruction, i).bytes
                for i in range(1, len(instruction.operands))
            )
        if opcode in _UPDATES:
            first = _UPDATES[opcode](instruction)
            updated = self._updated(instruction)
            others = sum(
                self._work.operand(instruction, i).bytes
                for i in range(first, len(instruction.operands))
            )
            return updated + others
        return out + sum(
            self._work.operand(instruction, i).bytes for i in range(len(instruction.operands))
        )

    def _updated(self, instruction: Instruction) -> float:
        """The bytes that an in-place update writes."""
        if instruction.opcode == "scatter":
            arrays = len(instruction.operands) // 2
            return float(
                sum(self._work.operand(instruction, arrays + 1 + i).bytes for i in range(arrays))
            )
        return float(self._work.operand(instruction, 1).bytes)

    def _moved_by_fusion(self, fused: Computation) -> Iterator[tuple[Instruction, float]]:
        """Yield (instruction, bytes it moves) for the instructions of a fusion that move bytes."""
        users = self.module.users
        instructions = self.module.instructions
        for parameter in fused.instructions:
            if parameter.opcode != "parameter":
                continue
            readers = [instructions[u] for u in users.get(parameter.id, ())]
            counts = [self._read(reader, parameter) for reader in readers]
            whole = [r for r, count in zip(readers, counts, strict=True) if count is None]
            for reader, count in zip(readers, counts, strict=True):
                if count is not None and not whole:
                    yield reader, count
            for reader in whole:  # the fusion reads it once for all of them
                yield reader, parameter.shape.bytes / len(whole)
        root = instructions[fused.root]
        results = [instructions[i] for i in root.operands] if root.opcode == "tuple" else [root]
        for result in results:
            while result.opcode == "bitcast":
                result = instructions[result.operands[0]]
            in_place = result.opcode in _UPDATES
            yield result, self._updated(result) if in_place else float(result.shape.bytes)

    def _read(self, reader: Instruction, parameter: Instruction) -> float | None:
        """The bytes of a parameter that a fused instruction reads; None if it reads all of it."""
        if parameter.id in reader.operands[1:]:
            return None
        if reader.opcode in _SLICES:
            return float(reader.shape.bytes)
        return 0.0 if reader.opcode in _UPDATES else None


# The index of the first operand that an in-place update reads in full.
_UPDATES: dict[str, Callable[[Instruction], int]] = {
    "dynamic-update-slice": lambda i: 1,
    "scatter": lambda i: len(i.operands) // 2,
}
