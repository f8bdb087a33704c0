"""The collectives of a program: the bytes that each moves over the links between chips, and its time.

Along one axis of n chips a collective runs around a ring, and each chip sends to both neighbours at once:

* all-gather and reduce-scatter move (n - 1) / n of the whole array through each chip, an all-reduce does both;
* in an all-to-all each chip sends (n - 1) / n of its part, a quarter of the way around the ring on average;
* a permutation sends each chip's part over one link.

Source: https://jax-ml.github.io/scaling-book/sharding/. A group of chips runs over as few axes of the topology as have
room for it, and over all of these at once. Along an axis without a link from its last chip to its first, there is half
of the bandwidth. Such links exist where the axis is as long as a whole pod of a v5e or v6e (16), and where it is a
multiple of 4 on chips with three axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...capture.tpu_chips import Chip
from ..hlo.module import Instruction, Module, Shape
from ..hlo.wire import fields, numbers

# Fields of an instruction in `hlo.proto`: its groups as lists, as a grid of devices, and as axes of a mesh.
_GROUPS, _GRID, _MESH_AXES = 87, 92, 93
KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
_SAME_NUMBERS = ("bitcast", "reshape", "copy", "transpose")


@dataclass(frozen=True)
class Collective:
    """One collective.

    Attributes:
        kind: its opcode.
        bytes: what each chip sends.
        chips: how many chips take part in each group.
        seconds: how long it takes if nothing else uses the links; an estimate.
        occupied: for how long it uses all links; a permutation leaves those of the other direction free.
    """

    kind: str
    bytes: float
    chips: int
    seconds: float
    occupied: float


class Collectives:
    """The collectives of a module.

    Args:
        module: the module.
        chip: the chip that it runs on.
        topology: the number of chips along each axis.
        count: the number of devices.
    """

    def __init__(self, module: Module, chip: Chip, topology: Sequence[int], count: int):
        self.module, self._count = module, count
        self._topology = sorted(topology, reverse=True)
        axes = chip.topology.count("x") + 1
        # The published figure is that of all links in both directions. A chip has two links along an axis, and sends
        # half of what they carry.
        self._along_axis = chip.ici.value / (2 * axes) if chip.ici is not None else math.inf
        self._closed = (lambda n: n % 4 == 0) if axes == 3 else (lambda n: n >= 16)

    def bandwidth(self, group: int) -> float:
        """The bytes per second that each chip sends in a collective of this number of chips."""
        total, room = 0.0, 1
        for length in self._topology:
            if room >= group and total:
                break
            total += self._along_axis if self._closed(length) else self._along_axis / 2
            room *= length
        return total or self._along_axis

    def of(self, instruction: Instruction) -> Collective | None:
        """The collective that an instruction is, contains or starts; None if there is none.

        A fusion may contain one that runs beside its other work. The fusions until its end contain it, too: only the
        first counts.
        """
        if instruction.opcode not in ("fusion", "async-start"):
            return self._one(instruction)
        starts = self.starts(instruction)
        if not starts and self.channel(instruction) in self._started:
            return None
        inner = list(self.module.inside(instruction))
        scattered = {self._source(i) for i in inner if i.opcode == "dynamic-slice"}
        found = (self._one(i, scatters=i.id in scattered) for i in inner)
        return next((one for one in found if one is not None), None)

    def starts(self, instruction: Instruction) -> bool:
        """Whether a collective that an instruction contains ends in a later one."""
        if instruction.opcode == "fusion":
            return instruction.name.startswith("async-collective-start")
        return instruction.opcode.endswith("-start")

    @cached_property
    def _started(self) -> set[int]:
        """The channels of the collectives that are in several fusions."""
        fusions = (i for i in self.module.instructions.values() if i.opcode == "fusion")
        return {self.channel(i) for i in fusions if self.starts(i)}

    def _source(self, instruction: Instruction) -> int:
        """What an instruction takes a part of, or gives another shape or layout."""
        source = self.module.instructions[instruction.operands[0]]
        return self._source(source) if source.opcode in _SAME_NUMBERS else source.id

    def channel(self, instruction: Instruction) -> int:
        """The number that the parts of a collective in several fusions share; 0 if there is none."""
        inside = self.module.inside(instruction) if instruction.opcode == "fusion" else ()
        found = (i.fields.get(26, 0) for i in (instruction, *inside) if i.opcode in KINDS)
        return next(found, 0)

    def _one(self, instruction: Instruction, scatters: bool = False) -> Collective | None:
        """The collective that an instruction is; `scatters`: of its result each chip takes only a part.

        libtpu writes a reduce-scatter as a fusion of an all-reduce and a dynamic-slice, and runs it as one.
        """
        kind = instruction.opcode.removesuffix("-start")
        if kind == "all-reduce" and scatters:
            kind = "reduce-scatter"
        if kind not in KINDS:
            return None
        group = group_size(instruction, self._count)
        own = sum(_size(self.module.instructions[o].shape) for o in instruction.operands)
        if kind.startswith("collective-permute"):
            both_ways = own / self._along_axis
            return Collective(kind, own, group, 2 * both_ways, both_ways)
        others = (group - 1) / group
        sent = {"all-gather": own * (group - 1), "all-reduce": 2 * own * others}.get(
            kind, own * others
        )
        hops = max(1.0, group / 4) if kind in ("all-to-all", "ragged-all-to-all") else 1.0
        seconds = sent * hops / self.bandwidth(group)
        return Collective(kind, sent, group, seconds, seconds)


def _size(shape: Shape) -> float:
    return float(sum(map(_size, shape.parts)) if shape.parts else shape.bytes)


def group_size(instruction: Instruction, devices: int) -> int:
    """How many devices take part in each group of a collective; all of them if the groups are not named."""
    if instruction.opcode.startswith("collective-permute"):
        return min(2, devices)
    if (mesh := instruction.fields.get(_MESH_AXES)) is not None:
        return _mesh_group(mesh)
    if (grid := instruction.fields.get(_GRID)) is not None:
        return int(dict(fields(grid)).get(2, devices))
    groups = dict(fields(instruction.fields.get(_GROUPS, b"")))
    ids = [n for key, value in fields(groups.get(1, b"")) if key == 1 for n in numbers(value)]
    return len(ids) or devices


def _mesh_group(data: bytes) -> int:
    """The product of the axes of a mesh that a collective runs over."""
    sizes: Sequence[int] = ()
    chosen: list[int] = []
    for key, value in fields(data):
        if key == 1:
            axes = (dict(fields(axis)) for k, axis in fields(value) if k == 1)
            sizes = [axis.get(2, 1) for axis in axes]
        elif key == 2:
            chosen.append(dict(fields(value)).get(1, 0))
    return math.prod(sizes[i] for i in chosen)
