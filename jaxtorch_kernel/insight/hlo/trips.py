"""Trip counts of loops.

XLA's CPU and GPU compilers record a trip count if they find one. The TPU compiler does not, and it splits a 64-bit
counter into two 32-bit values with a carry. So this module simulates the counters: it updates the scalars that the
condition reads as the body updates them, until the condition is false. Only integers that derive from constants can be
simulated. The trip count is unknown if the condition depends on data, or if the loop has more than 65,536 iterations.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable

from .module import Computation, Instruction, Module
from .wire import fields, numbers, signed

_KNOWN_TRIP_COUNT = re.compile(rb'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d+)')
_MOST = 1 << 16
_INTEGER = re.compile(r"pred|[su](8|16|32|64)")

# Opcodes that pass their first operand on, moved, reshaped or converted.
_SAME = frozenset(
    ["bitcast", "bitcast-convert", "convert", "copy", "copy-done", "opt-barrier", "reshape"]
)
_OPERATIONS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "maximum": max,
    "minimum": min,
    "negate": operator.neg,
    "select": lambda which, yes, no: yes if which else no,
}
_COMPARISONS: dict[bytes, Callable[[int, int], bool]] = {
    b"EQ": operator.eq,
    b"NE": operator.ne,
    b"LT": operator.lt,
    b"LE": operator.le,
    b"GT": operator.gt,
    b"GE": operator.ge,
}


class _UnknownError(Exception):
    """The value is not an integer, or it depends on data."""


class _Inputs(ABC):
    """The values of a computation's parameters in one run.

    Attributes:
        cache: the values computed so far: (instruction, tuple index) -> number.
    """

    def __init__(self) -> None:
        self.cache: dict[tuple[int, int | None], int] = {}

    @abstractmethod
    def element(self, parameter: Instruction, index: int | None) -> int:
        """One element of a tuple parameter; index None reads the whole parameter."""


class Trips:
    """The trip counts of a module's loops."""

    def __init__(self, module: Module):
        self.module = module
        self._counts: dict[int, int | None] = {}

    def of(self, loop: Instruction) -> int | None:
        """How often the body of a `while` runs; None if unknown."""
        if loop.id not in self._counts:
            recorded = _KNOWN_TRIP_COUNT.search(loop.fields.get(43, b""))
            self._counts[loop.id] = int(recorded[1]) if recorded else self._simulate(loop)
        return self._counts[loop.id]

    def _simulate(self, loop: Instruction) -> int | None:
        """The iterations until the condition is false."""
        body, condition = (self.module.computations[called] for called in loop.calls)
        try:
            state = self._start(loop, body, condition)
            for rounds in range(_MOST + 1):
                if not self.value(self.root(condition), None, _State(state)):
                    return rounds
                now = _State(state)
                state = {i: self.value(self.root(body), i, now) for i in state}
        except _UnknownError:
            pass
        return None

    def _start(
        self, loop: Instruction, body: Computation, condition: Computation
    ) -> dict[int, int]:
        """The counters before the first iteration: the values that the condition reads, and those they derive from."""
        outside = _Outside(self, loop.computation)
        start = self.module.instructions[loop.operands[0]]
        state = _State({}, lambda i: self.value(start, i, outside))
        self.value(self.root(condition), None, state)
        done: set[int] = set()
        while left := state.values.keys() - done:
            for i in left:
                self.value(self.root(body), i, state)
            done |= left
        return state.values

    def root(self, computation: Computation) -> Instruction:
        """The root instruction of a computation."""
        return self.module.instructions[computation.root]

    def value(self, instruction: Instruction, index: int | None, inputs: _Inputs) -> int:
        """The integer value of an instruction, or of element `index` of its tuple."""
        key = instruction.id, index
        if key not in inputs.cache:
            inputs.cache[key] = self._value(instruction, index, inputs)
        return inputs.cache[key]

    def _value(self, instruction: Instruction, index: int | None, inputs: _Inputs) -> int:
        opcode = instruction.opcode
        operands = [self.module.instructions[n] for n in instruction.operands]
        if opcode == "parameter":
            return inputs.element(instruction, index)
        if opcode == "get-tuple-element":
            return self.value(operands[0], instruction.fields.get(13, 0), inputs)
        if opcode == "tuple" and index is not None:
            return self.value(operands[index], None, inputs)
        if opcode in ("fusion", "call"):
            called = self.module.computations[instruction.calls[0]]
            return self.value(self.root(called), index, _Operands(self, operands, inputs))
        if opcode == "copy-start":  # a tuple of the copy and the original
            return self.value(operands[0], None, inputs)
        if opcode in _SAME and index is not None:
            return self.value(operands[0], index, inputs)
        if index is not None or not _is_number(instruction):
            raise _UnknownError
        if opcode == "constant":
            return _literal(instruction)
        if opcode not in _SAME and opcode not in _OPERATIONS and opcode not in ("compare", "not"):
            raise _UnknownError
        values = [self.value(operand, None, inputs) for operand in operands]
        return _wrap(_compute(instruction, values), instruction.shape.dtype)


class _State(_Inputs):
    """The counters of one iteration. `start` computes a counter when it is first read."""

    def __init__(self, values: dict[int, int], start: Callable[[int], int] | None = None):
        super().__init__()
        self.values, self._start = values, start

    def element(self, parameter: Instruction, index: int | None) -> int:
        if index is None:
            raise _UnknownError
        if index not in self.values:
            if self._start is None:
                raise _UnknownError
            self.values[index] = self._start(index)
        return self.values[index]


class _Operands(_Inputs):
    """The parameters of a fused computation: the operands of the fusion."""

    def __init__(self, trips: Trips, operands: list[Instruction], inputs: _Inputs):
        super().__init__()
        self._trips, self._operands, self._inputs = trips, operands, inputs

    def element(self, parameter: Instruction, index: int | None) -> int:
        operand = self._operands[parameter.fields.get(9, 0)]
        return self._trips.value(operand, index, self._inputs)


class _Outside(_Inputs):
    """Values from outside a loop: operands of calls, and loop invariants. Program arguments are data, so unknown."""

    def __init__(self, trips: Trips, computation: int):
        super().__init__()
        self._trips, self._computation = trips, computation

    def element(self, parameter: Instruction, index: int | None) -> int:
        module = self._trips.module
        callers = module.callers.get(self._computation, ())
        caller = module.instructions[callers[0]] if len(callers) == 1 else None
        if caller is None or not (
            caller.opcode == "call" or self._is_invariant(caller, parameter, index)
        ):
            raise _UnknownError
        operand = module.instructions[caller.operands[parameter.fields.get(9, 0)]]
        return self._trips.value(operand, index, _Outside(self._trips, caller.computation))

    def _is_invariant(self, loop: Instruction, parameter: Instruction, index: int | None) -> bool:
        """Whether an element of a loop's tuple is loop-invariant."""
        module = self._trips.module
        root = self._trips.root(module.computations[self._computation])
        if loop.opcode != "while" or root.opcode != "tuple" or index is None:
            return False
        updated = module.instructions[root.operands[index]]
        element = updated.opcode, updated.operands[:1], updated.fields.get(13, 0)
        return element == ("get-tuple-element", (parameter.id,), index)


def _is_number(instruction: Instruction) -> bool:
    shape = instruction.shape
    return shape.elements == 1 and _INTEGER.fullmatch(shape.dtype) is not None


def _compute(instruction: Instruction, values: list[int]) -> int:
    opcode = instruction.opcode
    if opcode == "compare":
        return _COMPARISONS[instruction.fields.get(63, b"EQ")](*values)
    if opcode == "not":
        return not values[0] if instruction.shape.dtype == "pred" else ~values[0]
    return _OPERATIONS[opcode](*values) if opcode in _OPERATIONS else values[0]


def _wrap(value: int, dtype: str) -> int:
    """A number wrapped to its integer type.

    Example:
        >>> _wrap(2**32 - 1, "s32"), _wrap(-1, "u8"), _wrap(2, "pred")
        (-1, 255, 1)
    """
    if dtype == "pred":
        return int(bool(value))
    bits = int(dtype[1:])
    value %= 1 << bits
    return value - (1 << bits) if dtype[0] == "s" and value >> (bits - 1) else value


# Fields of LiteralProto: a list of numbers, or raw bytes for the short types.
_LITERALS = {"pred": 2, "s32": 4, "s64": 5, "u32": 6, "u64": 7}
_SHORT = {"u8": 3, "s8": 15, "u16": 16, "s16": 17}


def _literal(instruction: Instruction) -> int:
    dtype = instruction.shape.dtype
    literal = dict(fields(instruction.fields.get(8, b"")))
    if dtype in _SHORT:
        return _wrap(int.from_bytes(literal.get(_SHORT[dtype], b""), "little"), dtype)
    value = literal.get(_LITERALS[dtype])
    return 0 if value is None else _wrap(signed(numbers(value)[0]), dtype)
