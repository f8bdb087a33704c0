"""Operation counts by opcode: floating-point operations and transcendental functions.

The counts follow the rules of XLA's `cost_analysis()`, which `costs.py` describes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .module import Computation, Instruction, Module, Shape
from .wire import fields, numbers, signed


class Cost(NamedTuple):
    """The cost of one or more instructions."""

    flops: float = 0.0
    transcendentals: float = 0.0
    bytes: float = 0.0

    def times(self, count: float) -> Cost:
        """The cost of `count` runs."""
        return Cost(self.flops * count, self.transcendentals * count, self.bytes * count)

    def plus(self, other: Cost) -> Cost:
        """The sum of two costs."""
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
        )


NOTHING = Cost()


def name_set(text: str) -> frozenset[str]:
    """The names in a text, separated by spaces."""
    return frozenset(text.split())


_TRANSCENDENTAL = name_set(
    """
    acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one
    logistic power rsqrt sine sinh sqrt tan tanh
    """
)
_ELEMENTWISE = name_set(
    """
    abs add and ceil clamp compare complex convert count-leading-zeros divide floor imag is-finite maximum
    minimum multiply negate not or popcnt real reduce-precision remainder round-nearest-afz round-nearest-even
    select shift-left shift-right-arithmetic shift-right-logical sign subtract xor
    """
)
ELEMENTWISE = _ELEMENTWISE | _TRANSCENDENTAL
_STATED = re.compile(rb'"cost_estimate"\s*:\s*\{[^{}]*?"flops"\s*:\s*"?(\d+)')
_CONTRACTED = re.compile(rb'"lhs_contracting_dimensions"\s*:\s*\[([^\]]*)\]')


class Work:
    """Counts the operations of a module's instructions, but not the bytes that they move."""

    def __init__(self, module: Module):
        self.module = module

    def of(self, instruction: Instruction) -> Cost:
        """The operations of one run of an instruction, including fused ones."""
        opcode = instruction.opcode
        if opcode in _ELEMENTWISE:
            return Cost(float(instruction.shape.elements))
        if opcode in _TRANSCENDENTAL:
            return Cost(0.0, float(instruction.shape.elements))
        if opcode == "fusion":
            return self.sum(self.module.computations[instruction.calls[0]])
        rule = _RULES.get(opcode)
        return NOTHING if rule is None else rule(self, instruction)

    def sum(self, computation: Computation) -> Cost:
        """The operations of a computation."""
        total = NOTHING
        for instruction in computation.instructions:
            total = total.plus(self.of(instruction))
        return total

    def operand(self, instruction: Instruction, index: int) -> Shape:
        """The shape of an operand."""
        return self.module.instructions[instruction.operands[index]].shape


def _dot(work: Work, instruction: Instruction) -> Cost:
    lhs = work.operand(instruction, 0).dimensions
    contracted = dict(fields(instruction.fields.get(30, b""))).get(1, b"")
    size = math.prod(lhs[i] for i in numbers(contracted))
    return Cost(2.0 * instruction.shape.elements * size)


def _library_call(work: Work, instruction: Instruction) -> Cost:
    """Counts a matrix product that a library computes, or what a Pallas kernel states. Others are not counted."""
    options = instruction.fields.get(43, b"")
    if (stated := _STATED.search(options)) is not None:
        return Cost(float(stated[1]))
    match = _CONTRACTED.search(options)
    if match is None or not instruction.operands:
        return NOTHING
    lhs = work.operand(instruction, 0).dimensions
    size = math.prod(lhs[int(n)] for n in re.findall(rb"\d+", match[1]))
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
    dimensions = []
    for key, value in fields(instruction.fields.get(15, b"")):
        if key == 1:
            values = {k: signed(v) for k, v in fields(value)}
            names = enumerate(_WindowDimension._fields, 1)
            dimensions.append(_WindowDimension(**{n: values[k] for k, n in names if k in values}))
    return dimensions


@lru_cache(maxsize=1024)
def _positions(window: _WindowDimension, base: int, out: int) -> int:
    """The number of pairs (window position, output position) that read an element of the input."""
    if window == _WindowDimension(window.size) and out == base - window.size + 1:
        return window.size * out
    outputs = np.arange(out) * window.stride - window.low
    count = 0
    for tap in range(window.size):
        positions = outputs + tap * window.dilation
        inside = (positions >= 0) & (positions < base * window.base_dilation)
        count += int((inside & (positions % window.base_dilation == 0)).sum())
    return count


def _convolution(work: Work, instruction: Instruction) -> Cost:
    base = work.operand(instruction, 0)
    out = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    numbering: dict[int, list[int]] = {}
    for key, value in fields(instruction.fields.get(16, b"")):
        numbering.setdefault(key, []).extend(numbers(value))
    batch, feature = numbering.get(7, [0])[0], numbering.get(8, [0])[0]
    out_feature = numbering.get(10, [0])[0]
    pairs = 1
    for window, of_base, of_out in zip(
        _window(instruction), numbering.get(11, ()), numbering.get(12, ()), strict=False
    ):
        pairs *= _positions(window, base.dimensions[of_base], out.dimensions[of_out])
    groups = instruction.fields.get(50, 1) or 1
    batches = instruction.fields.get(58, 1) or 1
    multiply_adds = (
        base.dimensions[feature]
        // groups
        * out.dimensions[out_feature]
        * (base.dimensions[batch] // batches)
        * pairs
    )
    return Cost(2.0 * multiply_adds)


def _applied(work: Work, instruction: Instruction, times: float, which: int = 0) -> Cost:
    """The cost of the computation that an instruction applies to elements, `times` times."""
    return work.sum(work.module.computations[instruction.calls[which]]).times(times)


def _reduce(work: Work, instruction: Instruction) -> Cost:
    shape = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return _applied(work, instruction, work.operand(instruction, 0).elements - shape.elements)


def _reduce_window(work: Work, instruction: Instruction) -> Cost:
    size = math.prod(w.size for w in _window(instruction))
    shape = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return _applied(work, instruction, shape.elements * (size - 1))


def _select_and_scatter(work: Work, instruction: Instruction) -> Cost:
    size = math.prod(w.size for w in _window(instruction))
    count = work.operand(instruction, 1).elements
    chosen = _applied(work, instruction, count * (size - 1), 0)
    return chosen.plus(_applied(work, instruction, count, 1))


def _scatter(work: Work, instruction: Instruction) -> Cost:
    index = len(instruction.operands) // 2 + 1
    return _applied(work, instruction, work.operand(instruction, index).elements)


def _sort(work: Work, instruction: Instruction) -> Cost:
    """n log n comparisons along the sorted dimension."""
    shape = work.operand(instruction, 0)
    along = numbers(instruction.fields.get(14, b"")) or [0]
    size = shape.dimensions[along[0]] if shape.dimensions else 1
    return Cost(float(shape.elements * max(size - 1, 0).bit_length()))


def _fft(work: Work, instruction: Instruction) -> Cost:
    """The usual 5 n log2 n for a complex transform."""
    size = math.prod(numbers(instruction.fields.get(32, b""))) or 1
    return Cost(5.0 * instruction.shape.elements * math.log2(size)) if size > 1 else NOTHING


def _by_elements(work: Work, instruction: Instruction) -> Cost:
    return Cost(float(instruction.shape.elements))


_RULES: dict[str, Callable[[Work, Instruction], Cost]] = {
    "dot": _dot,
    "convolution": _convolution,
    "custom-call": _library_call,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": _scatter,
    "map": lambda w, i: _applied(w, i, i.shape.elements),
    "sort": _sort,
    "fft": _fft,
    "all-reduce": _by_elements,
    "reduce-scatter": _by_elements,
}
