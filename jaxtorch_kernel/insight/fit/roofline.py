"""Estimates the time of a compiled program from its schedule, by a roofline with three roofs.

A TPU core runs the instructions of a program in the order of the schedule. Three units work at the same time: the
matrix unit, the memory (HBM) and the links to other chips (ICI). An instruction takes as long as its slower one of
matrix unit and memory. Copies and collectives that the compiler starts early run beside the instructions that follow,
until the instruction that waits for their end. The body of a loop counts as often as it runs.

The estimate is a lower bound: each unit runs at its published peak, elementwise arithmetic costs nothing beyond its
memory, and no instruction costs anything to start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...capture.tpu_chips import Chip
from ..hlo.costs import Costs
from ..hlo.module import RUNS_INSIDE, Computation, Instruction, Module
from ..hlo.scopes import scope_of
from ..hlo.trips import Trips
from ..hlo.wire import fields, numbers
from ..hlo.work import Work
from .collectives import Collectives
from .padding import stored_bytes

MATRIX, HBM = "matrix unit", "HBM"
_PRODUCTS = ("dot", "convolution")
_CALLS = RUNS_INSIDE - {"async-start"}  # what "async-start" runs is one copy or collective
# Others, such as those that XLA makes of a Fourier transform, have a precision of their own.
_IN_TORCHS_PRECISION = ("dot_general", "conv_general_dilated")
# Passes of the matrix unit for a product of float32 numbers, by `PrecisionConfig.Precision`.
PASSES_OF_HIGH = 3
_PASSES = {0: 1, 1: PASSES_OF_HIGH, 2: 6}


@dataclass
class Busy:
    """What one instruction takes, in all its runs.

    Attributes:
        seconds: its part of the time of the program.
        units: the seconds that each unit works for it, some of them at the same time.
        limits: its part of the time by the unit that it waits for. The sum is `seconds`.
        flops: operations of products and convolutions.
        multiplied: the same, each as often as the matrix unit repeats it for the sake of precision.
        by_passes: those of float32 numbers in the precision that torch is set to, by the passes that each takes.
        bytes: moved from and to the device's memory.
    """

    seconds: float = 0.0
    units: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    limits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    flops: float = 0.0
    multiplied: float = 0.0
    by_passes: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    bytes: float = 0.0

    def add(self, other: Busy, times: float = 1.0) -> None:
        """Add what `times` runs of something else take."""
        self.seconds += times * other.seconds
        self.flops += times * other.flops
        self.multiplied += times * other.multiplied
        self.bytes += times * other.bytes
        for number, flops in other.by_passes.items():
            self.by_passes[number] += times * flops
        for mine, others in ((self.units, other.units), (self.limits, other.limits)):
            for unit, seconds in others.items():
                mine[unit] += times * seconds


class Estimate:
    """The time of a module on a chip, by instruction.

    Attributes:
        busy: what each instruction outside of fusions takes, by its id.
        seconds: of one run of the program.
    """

    def __init__(self, module: Module, chip: Chip, topology: Sequence[int], devices: int):
        self.module, self.chip = module, chip
        self.costs = Costs(module, stored_bytes, lambda shape: shape.layout.space == 0)
        self.collectives = Collectives(module, chip, topology, devices)
        self.bandwidth = chip.bandwidth.value / chip.devices
        self.trips = Trips(module)
        self._work = Work(module)
        self.busy: dict[int, Busy] = {}
        self.seconds = self._run(module.entry, 1)

    def _run(self, computation: Computation, times: int) -> float:
        """The seconds of one run of a computation, which runs `times` times."""
        now = memory = links = 0.0
        queued = ""  # the collective that uses the links
        ends: dict[int, tuple[float, str]] = {}
        for instruction in computation.instructions:
            start, unit = now, HBM
            one = Busy()
            opcode = instruction.opcode
            collective = self.collectives.of(instruction)
            if opcode in _CALLS:
                now += self._inside(instruction, times)
                start = now
            elif collective is not None:
                begun = max(links, now)
                links, end = begun + collective.occupied, begun + collective.seconds
                one.units[collective.kind] += collective.seconds
                unit = collective.kind
                if self.collectives.starts(instruction):
                    channel = self.collectives.channel(instruction)
                    key = -channel if opcode == "fusion" else instruction.id
                    ends[key] = end, collective.kind
                else:
                    if begun > now:
                        one.limits[queued] += begun - now
                    now = end
                queued = collective.kind
                for product in self._products(instruction):  # of the same fusion
                    self._multiply(product, one)
                if (end := start + one.units.get(MATRIX, 0.0)) > now:
                    now, unit = end, MATRIX
            elif waits := [ends[o] for o in self._started(instruction) if o in ends]:
                end, unit = max(waits)
                now = max(now, end)
            else:
                one.bytes = self.costs.of(instruction).bytes
                seconds = one.bytes / self.bandwidth
                for product in self._products(instruction):
                    self._multiply(product, one)
                one.units[HBM] += seconds
                begun = max(memory, now) if seconds else now
                if opcode in ("copy-start", "async-start"):
                    memory = begun + seconds
                    ends[instruction.id] = memory, HBM
                else:
                    end = begun + seconds
                    memory = max(memory, end) if seconds else memory
                    matrix = now + one.units[MATRIX]
                    unit = MATRIX if matrix >= end else HBM
                    now = max(matrix, end)
            one.seconds = now - start
            one.limits[unit] += one.seconds - sum(one.limits.values())
            self.busy.setdefault(instruction.id, Busy()).add(one, times)
        return now

    def _inside(self, instruction: Instruction, times: int) -> float:
        """The seconds of one run of a loop, a branch or a call."""
        rounds = 1
        if instruction.opcode == "while":
            rounds = self.trips.of(instruction) or 1
        called = [self.module.computations[c] for c in instruction.calls]
        if instruction.opcode == "conditional":
            return self._slowest(called, times)
        return rounds * sum(self._run(c, times * rounds) for c in called)

    def _slowest(self, branches: Sequence[Computation], times: int) -> float:
        """The seconds of the slowest of several branches. The others count for nothing, because one branch runs."""
        outside, slowest, most = self.busy, dict[int, Busy](), 0.0
        for branch in branches:
            self.busy = {}
            seconds = self._run(branch, times)
            if seconds >= most:
                slowest, most = self.busy, seconds
        self.busy = outside
        for number, busy in slowest.items():
            self.busy.setdefault(number, Busy()).add(busy)
        return most

    def _started(self, instruction: Instruction) -> Sequence[int]:
        """What an instruction waits for the end of: an earlier instruction, or the channel of a collective."""
        if instruction.opcode.endswith("-done"):
            return instruction.operands
        if instruction.opcode == "fusion" and instruction.name.startswith("async-collective-done"):
            return [-self.collectives.channel(instruction)]
        return ()

    def _products(self, instruction: Instruction) -> list[Instruction]:
        inside = self.module.inside(instruction) if instruction.opcode == "fusion" else ()
        return [i for i in (instruction, *inside) if i.opcode in _PRODUCTS or self._is_kernel(i)]

    def _is_kernel(self, instruction: Instruction) -> bool:
        """Whether it is a Pallas kernel that states its operations."""
        return instruction.opcode == "custom-call" and self._work.of(instruction).flops > 0

    def _multiply(self, product: Instruction, busy: Busy) -> None:
        """Add a matrix product or convolution, at the peak of the matrix unit."""
        flops = self._work.of(product).flops
        dtypes = self._multiplied(product)
        repeated = passes(product, dtypes)
        multiplied = flops * repeated
        if "f32" in dtypes and scope_of(product.op_name).primitive in _IN_TORCHS_PRECISION:
            busy.by_passes[repeated] += flops
        busy.flops += flops
        busy.multiplied += multiplied
        busy.units[MATRIX] += multiplied / self.chip.peak(_name(dtypes))

    def _multiplied(self, product: Instruction) -> set[str]:
        """The dtypes of the numbers that a product multiplies; of a kernel, that of its largest operand."""
        operands = [self.module.instructions[o].shape for o in product.operands]
        if product.opcode in _PRODUCTS:
            return {shape.dtype for shape in operands[:2]}
        return {max(operands, key=lambda shape: shape.bytes).dtype} if operands else {"bf16"}


def _name(dtypes: set[str]) -> str:
    """The name of a dtype as the table of chips has it."""
    if dtypes <= {"s8", "u8", "s4", "u4"}:
        return "int8"
    if all(dtype.startswith("f8") for dtype in dtypes):
        return "float8"
    return "bfloat16"


def passes(product: Instruction, dtypes: set[str]) -> int:
    """How often the matrix unit multiplies for a product: more than once for float32 at a high precision."""
    if not dtypes & {"f32", "f64"}:
        return 1
    chosen = [n for k, v in _precision(product) if k == 1 for n in v]
    return _PASSES.get(max(chosen, default=0), 6)


def _precision(product: Instruction) -> list[tuple[int, list[int]]]:
    return [(k, numbers(v)) for k, v in fields(product.fields.get(51, b""))]
