"""Finds, in torch's graph, which tensors receive gradients from each output.

torch gives a tensor no gradient at all, rather than zeros, if no path leads to it from the differentiated outputs, and
optimizers distinguish the two. A captured program is one node of torch's graph, so it must supply this information
itself (`Bridge.flow`). During capture torch records every call, and the paths are read from that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.autograd.graph import Node

from ..operators.bridge import Bridge
from ..operators.node import function_of
from .recorded_call import RecordedCall

Tensor = torch.Tensor
Edge = tuple[Node, int]  # a node of torch's graph, and the index of one of its outputs


class Flow(NamedTuple):
    """What gradients of one result of a body flow to (`bodies.py`).

    Attributes:
        operands: indices of the body's operands.
        closure: identities of tensors from outside.
    """

    operands: frozenset[int]
    closure: frozenset[int]

    def union(self, *others: Flow) -> Flow:
        """What gradients of any of these results flow to."""
        operands = self.operands.union(*(other.operands for other in others))
        return Flow(operands, self.closure.union(*(other.closure for other in others)))

    def renumbered(self, indices: Callable[[int], Iterable[int]]) -> Flow:
        """The same with other indices for the operands; one may become several."""
        return Flow(frozenset(new for i in self.operands for new in indices(i)), self.closure)


_NOWHERE = Flow(frozenset(), frozenset())


def edge_of(tensor: Tensor) -> Edge:
    """The edge of torch's graph that a tensor's gradient enters by."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def ends_of(starts: Sequence[Edge], stops: Collection[Edge] = ()) -> dict[Edge, list[int]]:
    """The ends of all paths from `starts`: leaves and `stops`, each with the indices of the starts that lead there.

    Example:
        >>> import torch
        >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        >>> ends = ends_of([edge_of(a * b), edge_of(b.sin())])
        >>> [ends[edge_of(leaf)] for leaf in (a, b)]
        [[0], [0, 1]]
    """
    stops = set(stops)
    first = [_plain(start, stops) for start in starts]
    # One bit for each start, so that one walk of the graph serves all of them.
    bits: dict[Edge, int] = {}
    for i, start in enumerate(first):
        bits[start] = bits.get(start, 0) | 1 << i
    ends = []
    for edge in _in_order(first, stops):
        following = _following(edge, stops)
        if not following:
            ends.append(edge)
        for other in following:
            bits[other] = bits.get(other, 0) | bits[edge]
    return {edge: [i for i in range(len(starts)) if bits[edge] >> i & 1] for edge in ends}


def over_iterations(flows: Sequence[Flow], count: int, length: int | None = None) -> list[Flow]:
    """The flows of a loop of `length` iterations (None: any number but zero), given those of its body.

    The body's first `count` results are the first operands of the next iteration. Its other results are stacked: they
    flow to whatever they flow to in some iteration.
    """
    if length is None:
        return _to_the_end(flows, count)
    unchanged = [Flow(frozenset({i}), frozenset()) for i in range(count)]
    carried, power = unchanged, list(flows[:count])  # after no iteration, and after 2**i
    during, over_power = [_NOWHERE] * count, unchanged  # before any of these iterations
    while length:
        if length & 1:
            during = _merged(during, _after(over_power, carried))
            carried = _after(power, carried)
        over_power = _merged(over_power, _after(over_power, power))
        power = _after(power, power)
        length >>= 1
    return [*carried, *_after(flows[count:], during)]


def _to_the_end(flows: Sequence[Flow], count: int) -> list[Flow]:
    current = list(flows)
    while True:
        further = [f.union(*(current[i] for i in f.operands if i < count)) for f in current]
        if further == current:
            return current
        current = further


def _after(flows: Sequence[Flow], before: Sequence[Flow]) -> list[Flow]:
    """The flows of a step that follows another one, whose results are the first operands of the step."""
    count = len(before)
    return [
        Flow(frozenset(i for i in f.operands if i >= count), f.closure).union(
            *(before[i] for i in f.operands if i < count)
        )
        for f in flows
    ]


def _merged(flows: Sequence[Flow], others: Sequence[Flow]) -> list[Flow]:
    return [f.union(other) for f, other in zip(flows, others, strict=True)]


def _in_order(starts: Sequence[Edge], stops: set[Edge]) -> list[Edge]:
    """All edges that can be reached, each before the ones that follow it."""
    seen: set[Edge] = set()
    done: list[Edge] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        path: list[tuple[Edge, Iterator[Edge]]] = [(start, iter(_following(start, stops)))]
        while path:
            edge, rest = path[-1]
            other = next((e for e in rest if e not in seen), None)
            if other is None:
                done.append(edge)
                path.pop()
            else:
                seen.add(other)
                path.append((other, iter(_following(other, stops))))
    return done[::-1]


def _following(edge: Edge, stops: set[Edge]) -> list[Edge]:
    """The edges that gradients go to from here."""
    if edge in stops:
        return []
    node, output = edge
    edges = node.next_functions
    flow = _flow(node)
    if flow is not None:
        edges = tuple(edges[i] for i in sorted(flow[output]))
    return [_plain((node, index), stops) for node, index in edges if node is not None]


def _plain(edge: Edge, stops: set[Edge]) -> Edge:
    """The edge, or that of its node's first output where all outputs lead to the same edges."""
    return edge if edge in stops or _flow(edge[0]) is not None else (edge[0], 0)


def _flow(node: Node) -> list[frozenset[int]] | None:
    if isinstance(node, RecordedCall):
        return node.flow
    function = function_of(node)
    return function.flow if isinstance(function, Bridge) else None
