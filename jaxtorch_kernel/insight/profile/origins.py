"""The origin of an instruction's time: line, module path, operator, direction.

A fusion runs as one kernel, so its time is split over the fused instructions in proportion to their cost.
`hlo/inferred.py` infers the lines of instructions that XLA created without one. In both cases the part is marked as
inferred.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..hlo.costs import Cost, Costs
from ..hlo.module import Instruction, Module
from ..hlo.scopes import scope_of
from ..hlo.source import Sources
from ..programs import Location


class Origin(NamedTuple):
    """Where work comes from.

    Attributes:
        location: the line; None if unknown.
        stack: every line of user code on the stack, including `location`.
        scope: the names of modules and `record_function`s, the outermost first.
        operator: torch's operator in eager code, JAX's primitive in captured code.
    """

    location: Location | None = None
    scope: tuple[str, ...] = ()
    operator: str = ""
    backward: bool = False
    stack: tuple[Location, ...] = ()


class OriginPart(NamedTuple):
    """A share of an instruction.

    Attributes:
        fraction: the fraction of the instruction's time.
        cost: the cost of one run.
        inferred: whether the time or the line is an estimate.
    """

    origin: Origin
    fraction: float
    cost: Cost
    inferred: bool


class Origins:
    """The origins of one program's instructions.

    Args:
        backward: whether the whole program is a backward pass.
    """

    def __init__(self, module: Module, backward: bool = False):
        self.module, self.backward = module, backward
        self._sources, self._costs = Sources(module), Costs(module)
        self._cache: dict[int, list[OriginPart]] = {}

    def cost(self, instruction: Instruction) -> Cost:
        """The cost of one run of an instruction, without the computations it runs."""
        return sum_of(cost for _, cost in self._costs.spread(instruction))

    def of(self, instruction: Instruction) -> list[OriginPart]:
        """The origins of an instruction's time; the fractions add up to 1."""
        parts = self._cache.get(instruction.id)
        if parts is None:
            parts = self._cache[instruction.id] = self._split(instruction)
        return parts

    def _split(self, instruction: Instruction) -> list[OriginPart]:
        groups: dict[Origin, list[Cost]] = defaultdict(list)
        unattributed = []
        for inner, cost in self._costs.spread(instruction):
            origin = self._origin(inner)
            if origin.location is None:
                unattributed.append(cost)
            elif any(cost) or inner is instruction:
                groups[origin].append(cost)
        recorded = instruction.id not in self.module.inferred
        if not groups:
            return [OriginPart(self._origin(instruction), 1.0, sum_of(unattributed), not recorded)]
        costs = {origin: sum_of(group) for origin, group in groups.items()}
        # Distribute the cost of fused instructions without a line over those with a line.
        total = sum(_weight(cost) for cost in costs.values())
        unattributed_cost = sum_of(unattributed)
        parts = []
        for origin, cost in costs.items():
            fraction = _weight(cost) / total if total else 1 / len(costs)
            parts.append(
                OriginPart(
                    origin,
                    fraction,
                    cost.plus(unattributed_cost.times(fraction)),
                    len(costs) > 1 or not recorded,
                )
            )
        return parts

    def _origin(self, instruction: Instruction) -> Origin:
        scope = scope_of(instruction.op_name)
        location = self._sources.of(instruction)
        name = scope.primitive or instruction.opcode
        stack = self._sources.stack(instruction)
        return Origin(location, scope.path, name, self.backward or scope.backward, stack)


def sum_of(costs: Iterable[Cost]) -> Cost:
    """The sum of some costs."""
    total = Cost()
    for cost in costs:
        total = total.plus(cost)
    return total


def _weight(cost: Cost) -> float:
    """The relative weight of a part of a fusion: a byte moved counts as one operation, an `exp` as eight."""
    return cost.flops + 8 * cost.transcendentals + cost.bytes
