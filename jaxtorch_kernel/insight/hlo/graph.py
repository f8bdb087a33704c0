"""Graphs small enough to draw: the neighbourhood of an instruction, and the whole program folded by module path.

The time of a layout grows much faster than the graph, so each graph has at most `MOST` nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...base.units import counted
from .costs import NOTHING, Cost, Costs
from .module import Instruction
from .repeats import fold_repeats
from .scopes import scope_of

MOST = 80


@dataclass(frozen=True)
class Node:
    """An instruction, or a whole scope.

    Attributes:
        id: the instruction's id; for a scope, its index.
        label: the instruction's name, or the scope's path.
        detail: opcode and shape; for a scope, the number of instructions in all `count` scopes.
        distance: steps from the central instruction; for a scope, its depth.
        cost: the cost of one run; for a scope, the total of its instructions in one run of the program.
        count: how many equal scopes the node represents.
    """

    id: int
    label: str
    detail: str
    distance: int
    cost: Cost
    count: int = 1


@dataclass(frozen=True)
class Graph:
    """Nodes, and edges as pairs of their ids, from producer to consumer.

    Attributes:
        cut: whether nodes were left out.
    """

    nodes: list[Node]
    edges: list[tuple[int, int]]
    cut: bool = False


def neighbourhood(costs: Costs, instruction: Instruction, hops: int = 3, most: int = MOST) -> Graph:
    """An instruction with its producers and consumers, up to `hops` steps away, the nearest first."""
    module = costs.module
    distance = {instruction.id: 0}
    queue = deque([instruction.id])
    cut = False
    while queue:
        number = queue.popleft()
        current = module.instructions[number]
        neighbours = [*current.operands, *module.users.get(number, ())]
        if number == instruction.id and not module.computations[current.computation].fused:
            neighbours += [module.computations[c].root for c in current.calls]
        for other in neighbours:
            if other in distance:
                continue
            if len(distance) >= most or distance[number] == hops:
                cut = True
                continue
            distance[other] = distance[number] + 1
            queue.append(other)
    nodes = []
    edges = []
    for number, steps in distance.items():
        current = module.instructions[number]
        detail = f"{current.opcode} {current.shape.text}"
        nodes.append(Node(number, current.name, detail, steps, costs.of(current)))
        edges += [
            (operand, number) for operand in dict.fromkeys(current.operands) if operand in distance
        ]
        roots = [module.computations[c].root for c in current.calls]
        edges += [(root, number) for root in roots if root in distance]
    return Graph(nodes, edges, cut)


@dataclass
class _ScopeTotals:
    """The totals of one scope."""

    depth: int
    instructions: int = 0
    cost: Cost = field(default=NOTHING)
    count: int = 1


def folded(
    costs: Costs, depth: int | None = None, most: int = MOST, repeats: bool = False
) -> Graph:
    """The program folded by named scope: one node holds all instructions of a scope.

    Scopes deeper than `depth` are folded into their parents. By default, the depth is the largest one at which the
    graph has at most `most` nodes. The backward pass has its own nodes, such as "backward GPT/blocks.0". Repeated
    layers are one node, unless `repeats` asks for each.
    """
    work = [(i, times) for i, times in costs.executed() if i.opcode not in _FORWARDING]
    inside = [(i, inner, cost.times(times)) for i, times in work for inner, cost in costs.spread(i)]
    names = _Names([i for i, _ in work] + [inner for _, inner, _ in inside], repeats)
    paths = {i.id: names.path(i) for i, _ in work}
    # Fused instructions count in their own scope, which may be deeper than the fusion's.
    parts = [
        (names.path(inner) if inner.op_name else paths[instruction.id], inner, cost)
        for instruction, inner, cost in inside
    ]
    scopes = {path for path, _, _ in parts} | set(paths.values())
    deepest = max((len(path) for path, _ in scopes), default=0)
    if depth is None:
        depth = deepest
        while depth > 1 and len({(path[:depth], back) for path, back in scopes}) > most:
            depth -= 1
    totals_of_scope: dict[tuple[tuple[str, ...], bool], _ScopeTotals] = {}
    for (path, backward), inner, cost in parts:
        key = path[:depth], backward
        totals = totals_of_scope.setdefault(
            key, _ScopeTotals(len(key[0]), count=names.count(key[0]))
        )
        totals.instructions += inner.opcode not in _FORWARDING
        totals.cost = totals.cost.plus(cost)
    largest = dict(sorted(totals_of_scope.items(), key=_weight)[:most])
    numbers = {key: i for i, key in enumerate(largest)}
    nodes_of = {i: numbers.get((path[:depth], backward)) for i, (path, backward) in paths.items()}
    edges: dict[tuple[int, int], None] = {}
    for instruction, _ in work:
        to = nodes_of[instruction.id]
        for producer in _find_producers(costs, instruction):
            start = nodes_of.get(producer.id)
            if start is not None and to is not None and start != to:
                edges[start, to] = None
    nodes = [
        Node(
            numbers[key],
            _label(*key),
            counted(totals.instructions, "instruction")
            + f" in {totals.count} layers" * (totals.count > 1),
            totals.depth,
            totals.cost,
            totals.count,
        )
        for key, totals in largest.items()
    ]
    return Graph(nodes, list(edges), len(totals_of_scope) > len(largest) or depth < deepest)


def _weight(item: tuple[object, _ScopeTotals]) -> tuple[float, float]:
    return -item[1].cost.flops, -item[1].cost.bytes


def _label(path: tuple[str, ...], backward: bool) -> str:
    return ("backward " if backward else "") + ("/".join(path) or "(outside modules)")


class _Names:
    """The scopes of instructions, with repeated layers folded unless `repeats` is set."""

    def __init__(self, instructions: list[Instruction], repeats: bool):
        scopes = [] if repeats else [scope_of(i.op_name) for i in instructions]
        self._folded = fold_repeats(scopes)
        self._counts: dict[tuple[str, ...], int] = {}
        for path, count in self._folded.values():
            self._counts[path] = count

    def path(self, instruction: Instruction) -> tuple[tuple[str, ...], bool]:
        """The path of its scope, and whether it belongs to the backward pass."""
        scope = scope_of(instruction.op_name)
        path, _ = self._folded.get(scope.path, (scope.path, 1))
        return path, scope.backward

    def count(self, path: tuple[str, ...]) -> int:
        """How many scopes have this path."""
        return self._counts.get(path, 1)


# Opcodes that only forward values.
_FORWARDING = frozenset(
    [
        "tuple",
        "get-tuple-element",
        "bitcast",
        "copy",
        "parameter",
        "constant",
        "while",
        "call",
        "opt-barrier",
    ]
)


def _find_producers(costs: Costs, instruction: Instruction) -> Iterator[Instruction]:
    """The instructions that compute the operands; instructions that only forward values are skipped."""
    instructions = costs.module.instructions
    visited: set[int] = set()
    queue = list(instruction.operands)
    while queue:
        number = queue.pop()
        if number in visited:
            continue
        visited.add(number)
        producer = instructions[number]
        if producer.opcode in _FORWARDING and len(visited) < 1000:
            inside = producer.calls[:1] if producer.opcode in ("while", "call") else ()
            queue += producer.operands
            queue += [costs.module.computations[c].root for c in inside]
        else:
            yield producer
