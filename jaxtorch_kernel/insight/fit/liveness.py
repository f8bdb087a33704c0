"""Which buffers a program holds at the same time: its peak, from the schedule of its instructions.

The compiler orders the instructions of a program before it lays out its memory. So a value is held from the instruction
that computes it to the last one that reads it. Many instructions compute no new value: they pass parts of others on, or
write in place. The compiler may place a result where an operand was whose last reader is the instruction itself; here
this is assumed of elementwise operations. The values inside a loop are held while the loop runs, beside those outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..hlo.module import Computation, Instruction, Module, Shape
from ..hlo.wire import fields, numbers
from ..hlo.work import ELEMENTWISE, name_set

# Opcodes whose result is their first operand.
_SAME = name_set(
    """
    bitcast opt-barrier while copy-done async-update async-done all-gather-done all-reduce-done send-done
    collective-permute-done add-dependency domain dynamic-update-slice scatter
    """
)
_NOTHING = name_set("constant after-all partition-id replica-id")
# Instructions that read each element of an operand before they write the same element of their result.
_IN_PLACE = ELEMENTWISE | name_set(
    """
    fusion parameter constant broadcast bitcast iota tuple get-tuple-element dynamic-update-slice all-reduce map
    """
)


@dataclass(frozen=True)
class Value:
    """A value in memory: one array of the result of an instruction.

    Attributes:
        instruction: computes it.
        shape: of the array.
        bytes: that it takes.
    """

    instruction: Instruction
    shape: Shape
    bytes: int


@dataclass(frozen=True)
class Moment:
    """What is held when most memory is in use.

    Attributes:
        instruction: the one that runs, innermost.
        values: what is held besides the inputs.
    """

    instruction: Instruction | None
    values: tuple[Value, ...]

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(value.bytes for value in self.values)


_EMPTY = Moment(None, ())
# The values behind the arrays of a result, by number; None: an input or nothing.
_Leaves = tuple[int | None, ...]


class Liveness:
    """The buffers of a module over time.

    Args:
        module: a module whose instructions are in the order of its schedule.
        size: the bytes that a value takes in main memory.
        of_outputs: whether results that reuse no input are counted, too.
    """

    def __init__(self, module: Module, size: Callable[[Shape], int], of_outputs: bool = False):
        self.module, self._size, self._of_outputs = module, size, of_outputs
        self._peaks: dict[int, Moment] = {}

    @cached_property
    def peak(self) -> Moment:
        """The moment in a run when most memory is in use."""
        return self._peak(self.module.entry)

    def _peak(self, computation: Computation) -> Moment:
        if computation.id not in self._peaks:
            self._peaks[computation.id] = self._computed(computation)
        return self._peaks[computation.id]

    def _computed(self, computation: Computation) -> Moment:
        values: list[Value] = []
        leaves: dict[int, _Leaves] = {}
        last: dict[int, int] = {}
        order = computation.instructions
        for position, instruction in enumerate(order):
            leaves[instruction.id] = self._leaves(instruction, leaves, values)
            for operand in instruction.operands:
                for value in leaves.get(operand, ()):
                    if value is not None:
                        last[value] = position
        for number, value in enumerate(leaves[computation.root]):
            if value is not None:
                last[value] = len(order)
                aliased = number in self.module.aliases or not self._of_outputs
                if computation is self.module.entry and aliased:
                    values[value] = replace(values[value], bytes=0)
        if computation is not self.module.entry:
            # The results of a loop's body reuse the memory of its inputs.
            for value in leaves[computation.root]:
                if value is not None:
                    values[value] = replace(values[value], bytes=0)
        return self._sweep(order, values, last)

    def _sweep(
        self, order: Sequence[Instruction], values: list[Value], last: dict[int, int]
    ) -> Moment:
        """Go through the schedule."""
        made: dict[int, list[int]] = {}
        for number, value in enumerate(values):
            made.setdefault(value.instruction.id, []).append(number)
        ends: dict[int, list[int]] = {}
        for number, position in last.items():
            ends.setdefault(position, []).append(number)
        held: dict[int, None] = {}
        total = most = 0
        best = _EMPTY
        for position, instruction in enumerate(order):
            new = made.get(instruction.id, ())
            dying = [n for n in ends.get(position, ()) if n in held]
            inner = self._inside(instruction)
            for number in new:
                held[number] = None
                total += values[number].bytes
            shared = self._shared(instruction, [values[n] for n in new], [values[n] for n in dying])
            now = total - shared + inner.bytes
            if now > most:
                most = now
                kept = [n for n in held if not (shared and n in dying)]
                at = inner.instruction or instruction
                best = Moment(at, (*(values[n] for n in kept if values[n].bytes), *inner.values))
            for number in (*dying, *(n for n in new if n not in last)):
                if number in held:
                    del held[number]
                    total -= values[number].bytes
        return best

    def _inside(self, instruction: Instruction) -> Moment:
        """The peak of what an instruction runs."""
        if instruction.opcode not in ("while", "call", "conditional", "async-start"):
            return _EMPTY
        peaks = [self._peak(self.module.computations[c]) for c in instruction.calls]
        return max(peaks, key=lambda moment: moment.bytes, default=_EMPTY)

    def _shared(
        self, instruction: Instruction, new: Sequence[Value], dying: Sequence[Value]
    ) -> int:
        """The bytes of new values that reuse the memory of an operand whose last reader is this instruction."""
        inside = self.module.inside(instruction) if instruction.opcode == "fusion" else ()
        if any(i.opcode not in _IN_PLACE for i in (instruction, *inside)):
            return 0
        free = sorted(value.bytes for value in dying)
        shared = 0
        for value in new:
            if value.bytes in free:
                free.remove(value.bytes)
                shared += value.bytes
        return shared

    def _leaves(
        self, instruction: Instruction, leaves: dict[int, _Leaves], values: list[Value]
    ) -> _Leaves:
        """The values behind the arrays of an instruction's result; new ones are added to `values`."""
        opcode = instruction.opcode
        operands = [leaves.get(o, ()) for o in instruction.operands]
        if opcode in _NOTHING or opcode == "parameter":
            return (None,) * count_arrays(instruction.shape)
        if opcode == "tuple":
            return tuple(leaf for operand in operands for leaf in operand)
        if opcode == "get-tuple-element":
            index = instruction.fields.get(13, 0)
            parts = self.module.instructions[instruction.operands[0]].shape.parts
            first = sum(map(count_arrays, parts[:index]))
            return operands[0][first : first + count_arrays(instruction.shape)]
        if opcode in _SAME:
            return operands[0][: count_arrays(instruction.shape)]
        passed = dict(self._passed(instruction, operands))
        found: list[int | None] = []
        for number, shape in enumerate(arrays(instruction.shape)):
            if number in passed:
                found.append(passed[number])
                continue
            values.append(Value(instruction, shape, self._size(shape)))
            found.append(len(values) - 1)
        return tuple(found)

    def _passed(
        self, instruction: Instruction, operands: Sequence[_Leaves]
    ) -> Iterator[tuple[int, int | None]]:
        """The arrays of a result that are arrays of an operand: (number, value)."""
        opcode = instruction.opcode
        if opcode in ("copy-start", "collective-permute-start", "send"):
            yield 1 if opcode == "copy-start" else 0, operands[0][0]
        elif opcode in ("all-gather-start", "async-start"):
            flat = [leaf for operand in operands for leaf in operand]
            yield from enumerate(flat)
        aliasing = instruction.fields.get(74)
        if aliasing is not None:
            for result, operand, index in aliased(aliasing):
                shape = self.module.instructions[instruction.operands[operand]].shape
                yield (
                    first_array(instruction.shape, result),
                    operands[operand][first_array(shape, index)],
                )


def arrays(shape: Shape) -> list[Shape]:
    """The arrays of a shape."""
    return [a for part in shape.parts for a in arrays(part)] if shape.parts else [shape]


def count_arrays(shape: Shape) -> int:
    """The number of arrays of a shape."""
    if shape.dtype == "tuple":
        return sum(map(count_arrays, shape.parts))
    return 1


def first_array(shape: Shape, index: Sequence[int]) -> int:
    """The number of the first array at an index of nested tuples."""
    first = 0
    for i in index:
        first += sum(map(count_arrays, shape.parts[:i]))
        shape = shape.parts[i]
    return first


def aliased(data: bytes | Sequence[bytes]) -> Iterator[tuple[list[int], int, list[int]]]:
    """(index of a result, operand, index of the operand) for what a fusion writes in place."""
    for one in [data] if isinstance(data, bytes) else data:
        entry = dict(fields(one))
        yield numbers(entry.get(1, b"")), entry.get(2, 0), numbers(entry.get(3, b""))
