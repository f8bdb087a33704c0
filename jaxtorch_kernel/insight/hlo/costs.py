"""What instructions cost: floating point operations, transcendental functions, bytes moved.

XLA's own `cost_analysis()` has totals of a program, in which the body of a loop counts once. Here each instruction has
its own figures, by the rules that XLA counts by, and a loop counts as often as XLA knows that it runs:

* a product or a sum of elements is one operation, a multiply-add two; `exp`, `tanh`, ... are counted by themselves;
* a convolution counts the positions where its window lies on the input, not those in the padding;
* what is fused moves nothing: a fusion reads its operands once and writes its result once. A slice reads what it
  cuts out, and an update in place writes what it changes;
* of a branch, every side counts once: an upper bound. A loop that nobody knows the length of counts once, and is
  listed (`Costs.unknown`), as are calls of libraries whose work is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from .module import RUNS_INSIDE, Computation, Instruction, Module, Shape
from .wire import fields, numbers, signed


class Cost(NamedTuple):
    """A cost of an instruction, or of several."""

    flops: float = 0.0
    transcendentals: float = 0.0
    bytes: float = 0.0

    def times(self, count: float) -> Cost:
        """The cost of so many."""
        return Cost(self.flops * count, self.transcendentals * count, self.bytes * count)

    def plus(self, other: Cost) -> Cost:
        """Both."""
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
        )


NOTHING = Cost()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TRANSCENDENTAL = _words(
    """
    acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one
    logistic power rsqrt sine sinh sqrt tan tanh
    """
)
_ELEMENTWISE = _words(
    """
    abs add and ceil clamp compare complex convert count-leading-zeros divide floor imag is-finite maximum
    minimum multiply negate not or popcnt real reduce-precision remainder round-nearest-afz round-nearest-even
    select shift-left shift-right-arithmetic shift-right-logical sign subtract xor
    """
)
# Nothing moves: they only say where something is, or what they run moves by itself.
_FREE = _words(
    """
    parameter constant tuple get-tuple-element bitcast after-all opt-barrier while call conditional
    add-dependency partition-id replica-id async-update async-done copy-done send-done recv-done all-gather-done
    all-reduce-done collective-permute-done domain get-dimension-size
    """
)
_SLICES = frozenset(("slice", "dynamic-slice", "gather"))
_TRIPS = re.compile(rb'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d+)')
_CONTRACTED = re.compile(rb'"lhs_contracting_dimensions"\s*:\s*\[([^\]]*)\]')


class Costs:
    """The costs of a module's instructions."""

    def __init__(self, module: Module):
        self.module = module
        self._known: dict[int, Cost] = {}
        self._spread: dict[int, list[tuple[Instruction, Cost]]] = {}

    @cached_property
    def total(self) -> Cost:
        """Of one run of the program."""
        return self._of_computation(self.module.entry)

    def of(self, instruction: Instruction) -> Cost:
        """Of one run of an instruction, with all that it runs: a loop's with all its rounds."""
        found = self._known.get(instruction.id)
        if found is None:
            found = self._own(instruction)
            times = trips(instruction) or 1 if instruction.opcode == "while" else 1
            if instruction.opcode in RUNS_INSIDE:
                for called in instruction.calls:
                    found = found.plus(
                        self._of_computation(self.module.computations[called]).times(times)
                    )
            self._known[instruction.id] = found
        return found

    @cached_property
    def runs(self) -> dict[int, int]:
        """How often each computation of more than a fusion runs in one run of the program, by its id."""
        found: dict[int, int] = {}

        def visit(computation: Computation, times: int) -> None:
            found[computation.id] = found.get(computation.id, 0) + times
            for instruction in computation.instructions:
                if instruction.opcode in RUNS_INSIDE:
                    own = trips(instruction) or 1 if instruction.opcode == "while" else 1
                    for called in instruction.calls:
                        visit(self.module.computations[called], times * own)

        visit(self.module.entry, 1)
        return found

    def executed(self) -> Iterator[tuple[Instruction, int]]:
        """The instructions that XLA runs one by one, and how often each: those of no fusion."""
        for number, times in self.runs.items():
            for instruction in self.module.computations[number].instructions:
                yield instruction, times

    def spread(self, instruction: Instruction) -> Sequence[tuple[Instruction, Cost]]:
        """The cost of one run by what is fused in it: reads go to who reads, the write to who makes the result.

        Of anything but a fusion, the instruction itself, without what it runs. The costs add up to its own.
        """
        if instruction.opcode != "fusion":
            return [(instruction, self._own(instruction))]
        found = self._spread.get(instruction.id)
        if found is None:
            fused = self.module.computations[instruction.calls[0]]
            moved: dict[int, float] = {}
            for inner, count in self._moved_by_fusion(fused):
                moved[inner.id] = moved.get(inner.id, 0.0) + count
            found = self._spread[instruction.id] = []
            for inner in fused.instructions:
                work = self._work(inner)
                own = Cost(work.flops, work.transcendentals, moved.get(inner.id, 0.0))
                found.append((inner, own))
        return found

    @cached_property
    def unknown(self) -> list[Instruction]:
        """Loops of unknown length, which count once, and calls of libraries, whose work counts nothing."""
        return [
            i
            for i, _ in self.executed()
            if (i.opcode == "while" and trips(i) is None)
            or (i.opcode == "custom-call" and not self._work(i).flops)
        ]

    # -- of one instruction -----------------------------------------------------------------------------------

    def _of_computation(self, computation: Computation) -> Cost:
        total = NOTHING
        for instruction in computation.instructions:
            if instruction.opcode not in _FREE or instruction.opcode in RUNS_INSIDE:
                total = total.plus(self.of(instruction))
        return total

    def _own(self, instruction: Instruction) -> Cost:
        """Without the computations that a loop, a branch or a call runs."""
        if instruction.opcode == "fusion":
            total = NOTHING
            for _, cost in self.spread(instruction):
                total = total.plus(cost)
            return total
        work = self._work(instruction)
        return Cost(work.flops, work.transcendentals, self._moved(instruction))

    def _work(self, instruction: Instruction) -> Cost:
        """Operations alone."""
        opcode = instruction.opcode
        if opcode in _ELEMENTWISE:
            return Cost(float(instruction.shape.elements))
        if opcode in _TRANSCENDENTAL:
            return Cost(0.0, float(instruction.shape.elements))
        if opcode == "fusion":
            return self._sum(self.module.computations[instruction.calls[0]])
        rule = _RULES.get(opcode)
        return NOTHING if rule is None else rule(self, instruction)

    def _sum(self, computation: Computation) -> Cost:
        total = NOTHING
        for instruction in computation.instructions:
            total = total.plus(self._work(instruction))
        return total

    def _operand(self, instruction: Instruction, place: int) -> Shape:
        return self.module.instructions[instruction.operands[place]].shape

    # -- bytes ------------------------------------------------------------------------------------------------

    def _moved(self, instruction: Instruction) -> float:
        opcode, out = instruction.opcode, float(instruction.shape.bytes)
        if opcode in _FREE:
            return 0.0
        if opcode == "copy-start":  # whose result names the source too
            return 2.0 * self._operand(instruction, 0).bytes
        if opcode in _SLICES:
            return 2 * out + sum(
                self._operand(instruction, i).bytes for i in range(1, len(instruction.operands))
            )
        if opcode in _UPDATES:
            first = _UPDATES[opcode](instruction)
            own = self._updated(instruction)
            others = sum(
                self._operand(instruction, i).bytes for i in range(first, len(instruction.operands))
            )
            return own + others
        return out + sum(
            self._operand(instruction, i).bytes for i in range(len(instruction.operands))
        )

    def _updated(self, instruction: Instruction) -> float:
        """What an update in place writes."""
        if instruction.opcode == "scatter":
            arrays = len(instruction.operands) // 2
            return float(
                sum(self._operand(instruction, arrays + 1 + i).bytes for i in range(arrays))
            )
        return float(self._operand(instruction, 1).bytes)

    def _moved_by_fusion(self, fused: Computation) -> Iterator[tuple[Instruction, float]]:
        """(who moves, bytes) of a fusion."""
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
            for reader in whole:  # it is read once, and by all of them
                yield reader, parameter.shape.bytes / len(whole)
        root = instructions[fused.root]
        results = [instructions[i] for i in root.operands] if root.opcode == "tuple" else [root]
        for result in results:
            while result.opcode == "bitcast":
                result = instructions[result.operands[0]]
            in_place = result.opcode in _UPDATES
            yield result, self._updated(result) if in_place else float(result.shape.bytes)

    def _read(self, reader: Instruction, parameter: Instruction) -> float | None:
        """What an instruction of a fusion reads of a parameter, where that is not all of it."""
        if parameter.id in reader.operands[1:]:
            return None
        if reader.opcode in _SLICES:
            return float(reader.shape.bytes)
        return 0.0 if reader.opcode in _UPDATES else None


def trips(loop: Instruction) -> int | None:
    """How often the body of a loop runs, where XLA found out."""
    found = _TRIPS.search(loop.fields.get(43, b""))
    return int(found[1]) if found else None


# The first operand that an update in place reads as a whole.
_UPDATES: dict[str, Callable[[Instruction], int]] = {
    "dynamic-update-slice": lambda i: 1,
    "scatter": lambda i: len(i.operands) // 2,
}


def _dot(costs: Costs, instruction: Instruction) -> Cost:
    lhs = costs._operand(instruction, 0).dimensions
    contracted = dict(fields(instruction.fields.get(30, b""))).get(1, b"")
    size = math.prod(lhs[i] for i in numbers(contracted))
    return Cost(2.0 * instruction.shape.elements * size)


def _library_call(costs: Costs, instruction: Instruction) -> Cost:
    """A matrix product by a library; what else a library does is not known."""
    found = _CONTRACTED.search(instruction.fields.get(43, b""))
    if found is None or not instruction.operands:
        return NOTHING
    lhs = costs._operand(instruction, 0).dimensions
    size = math.prod(lhs[int(n)] for n in re.findall(rb"\d+", found[1]))
    out = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return Cost(2.0 * out.elements * size)


class _WindowDimension(NamedTuple):
    size: int = 1
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    base_dilation: int = 1


def _window(instruction: Instruction) -> list[_WindowDimension]:
    found = []
    for key, value in fields(instruction.fields.get(15, b"")):
        if key == 1:
            own = {k: signed(v) for k, v in fields(value)}
            names = enumerate(_WindowDimension._fields, 1)
            found.append(_WindowDimension(**{n: own[k] for k, n in names if k in own}))
    return found


def _positions(window: _WindowDimension, base: int, out: int) -> int:
    """How many pairs of a place in the window and a place of the result meet an element of the input."""
    if window == _WindowDimension(window.size) and out == base - window.size + 1:
        return window.size * out
    count = 0
    for place in range(window.size):
        for step in range(out):
            at = step * window.stride - window.low + place * window.dilation
            count += at % window.base_dilation == 0 and 0 <= at // window.base_dilation < base
    return count


def _convolution(costs: Costs, instruction: Instruction) -> Cost:
    base = costs._operand(instruction, 0)
    out = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    own: dict[int, list[int]] = {}
    for key, value in fields(instruction.fields.get(16, b"")):
        own.setdefault(key, []).extend(numbers(value))
    batch, feature = own.get(7, [0])[0], own.get(8, [0])[0]
    out_feature = own.get(10, [0])[0]
    places = 1
    for window, of_base, of_out in zip(
        _window(instruction), own.get(11, ()), own.get(12, ()), strict=False
    ):
        places *= _positions(window, base.dimensions[of_base], out.dimensions[of_out])
    groups = instruction.fields.get(50, 1) or 1
    batches = instruction.fields.get(58, 1) or 1
    multiply_adds = (
        base.dimensions[feature]
        // groups
        * out.dimensions[out_feature]
        * (base.dimensions[batch] // batches)
        * places
    )
    return Cost(2.0 * multiply_adds)


def _applied(costs: Costs, instruction: Instruction, times: float, which: int = 0) -> Cost:
    """The computation that an instruction applies to elements, so many times."""
    return costs._sum(costs.module.computations[instruction.calls[which]]).times(times)


def _reduce(costs: Costs, instruction: Instruction) -> Cost:
    shape = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return _applied(costs, instruction, costs._operand(instruction, 0).elements - shape.elements)


def _reduce_window(costs: Costs, instruction: Instruction) -> Cost:
    size = math.prod(w.size for w in _window(instruction))
    shape = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return _applied(costs, instruction, shape.elements * (size - 1))


def _select_and_scatter(costs: Costs, instruction: Instruction) -> Cost:
    size = math.prod(w.size for w in _window(instruction))
    count = costs._operand(instruction, 1).elements
    chosen = _applied(costs, instruction, count * (size - 1), 0)
    return chosen.plus(_applied(costs, instruction, count, 1))


def _scatter(costs: Costs, instruction: Instruction) -> Cost:
    place = len(instruction.operands) // 2 + 1
    return _applied(costs, instruction, costs._operand(instruction, place).elements)


def _sort(costs: Costs, instruction: Instruction) -> Cost:
    """n log n comparisons along the sorted dimension."""
    shape = costs._operand(instruction, 0)
    along = numbers(instruction.fields.get(14, b"")) or [0]
    size = shape.dimensions[along[0]] if shape.dimensions else 1
    return Cost(float(shape.elements * max(size - 1, 0).bit_length()))


def _fft(costs: Costs, instruction: Instruction) -> Cost:
    """5 n log2 n for a complex transform, as is usual."""
    size = math.prod(numbers(instruction.fields.get(32, b""))) or 1
    return Cost(5.0 * instruction.shape.elements * math.log2(size)) if size > 1 else NOTHING


def _by_elements(costs: Costs, instruction: Instruction) -> Cost:
    return Cost(float(instruction.shape.elements))


_RULES: dict[str, Callable[[Costs, Instruction], Cost]] = {
    "dot": _dot,
    "convolution": _convolution,
    "custom-call": _library_call,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": _scatter,
    "map": lambda c, i: _applied(c, i, i.shape.elements),
    "sort": _sort,
    "fft": _fft,
    "all-reduce": _by_elements,
    "reduce-scatter": _by_elements,
}
