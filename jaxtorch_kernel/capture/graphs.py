"""Prepares the FX graphs of `torch.compile` for `pure`.

Such a graph names the devices of the original code. Here all of it runs on the jax device: device names are replaced,
and results that belong to another device are moved there at the end. The inputs that the graph writes and the outputs
that are views of inputs are found from the fake tensors that Dynamo leaves on its nodes.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ..base.torch_private import pytree

Tensor = torch.Tensor

_JAX = torch.device("jax", 0)
_ELSEWHERE = ("cpu", "cuda")
_MOVES = ("to", "cpu", "cuda", "jax", "type")


class DeviceGraph:
    """A graph that runs on the jax device, and how to call it.

    Attributes:
        module: takes the inputs and then the tensors of `attributes`; returns the outputs, with None for `views`.
        attributes: names of tensors that the graph holds itself.
        floats: inputs that are Python floats, which Dynamo passes as tensors.
        unused: inputs that nothing reads.
        statics: numbers whose value the code needs (a size).
        written: inputs that in-place operators write to (running statistics are not seen here).
        devices: of the outputs (None for non-tensors).
        views: outputs that are views of inputs.
        viewer: computes those from the inputs, by view operators alone.
    """

    def __init__(self, graph: fx.GraphModule):
        nodes = list(graph.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        kept = [n for n in nodes if n.op == "get_attr" and isinstance(_kept(graph, n), Tensor)]
        outputs = list(nodes[-1].args[0])
        self.attributes = [str(n.target) for n in kept]
        self.floats = {i for i, n in enumerate(inputs) if _is_float(n)}
        self.unused = [i for i, n in enumerate(inputs) if not n.users]
        self.statics = {i for i, n in enumerate(inputs) if not _is_operand(n)}
        self.written = {i for i, n in enumerate([*inputs, *kept]) if _is_written(n)}
        self.devices = [_device(o) for o in outputs]
        self.views = _views_of(outputs, [*inputs, *kept])
        self.viewer = _viewer(graph, outputs, self.views, kept) if self.views else None
        if self.viewer is None:
            self.views = set()
        self.module = _moved(graph, kept, self.floats, self.views)


def _kept(graph: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(graph)


def _fakes(node: Any) -> list[Tensor]:
    """The fake tensors that a node stands for."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _device(output: Any) -> torch.device | None:
    fakes = _fakes(output)
    return fakes[0].device if fakes else None


def _is_float(node: fx.Node) -> bool:
    """Whether an input is a Python float: Dynamo passes it as a tensor and takes its value inside."""
    fakes = _fakes(node)
    return (
        len(fakes) == 1
        and not fakes[0].dim()
        and len(node.users) > 0
        and all(u.op == "call_method" and u.target == "item" for u in node.users)
    )


_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv)


def _is_operand(node: fx.Node) -> bool:
    """Whether a number does nothing but arithmetic with tensors, so that it can be an operand of the program."""
    users = [v for u in node.users for v in u.users] if _is_float(node) else list(node.users)
    return all(u.target in _ARITHMETIC and bool(_fakes(u)) for u in users)


def _is_written(node: fx.Node) -> bool:
    return any(fake._version > 0 for fake in _fakes(node))


def _memory(node: Any) -> set[int]:
    return {fake.untyped_storage()._cdata for fake in _fakes(node)}


def _views_of(outputs: list[Any], inputs: list[fx.Node]) -> set[int]:
    known = set().union(*(_memory(n) for n in inputs))
    return {i for i, o in enumerate(outputs) if _memory(o) & known}


def _moved(
    graph: fx.GraphModule, kept: list[fx.Node], floats: set[int], views: set[int]
) -> fx.GraphModule:
    """The graph on the jax device."""
    new = fx.Graph()
    twin: dict[fx.Node, fx.Node] = {}
    inputs = graph.graph.find_nodes(op="placeholder")
    for i, node in enumerate(inputs):
        twin[node] = new.placeholder(node.name)
        if i in floats:
            twin.update(dict.fromkeys(node.users, twin[node]))
    for node in kept:
        twin[node] = new.placeholder(node.name)
    for node in graph.graph.nodes:
        if node in twin:
            continue
        if node.op == "output":
            results = [None if i in views else o for i, o in enumerate(node.args[0])]
            new.output(fx.map_arg(tuple(results), twin.__getitem__))
        else:
            copy = twin[node] = new.node_copy(node, twin.__getitem__)
            _move(copy, node)
    root = {
        name: _moved_whole(part) if isinstance(part, fx.GraphModule) else part
        for name, part in graph.named_children()
    }
    return fx.GraphModule(_Root(root), new)


class _Root(torch.nn.Module):
    def __init__(self, parts: dict[str, Any]):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def _moved_whole(graph: fx.GraphModule) -> fx.GraphModule:
    """The body of a higher-order operator: its inputs are its caller's."""
    return _moved(graph, [], set(), set())


def _move(node: fx.Node, original: fx.Node) -> None:
    """Let a node's result be on the jax device."""
    node.args = map_aggregate(node.args, _on_jax)
    node.kwargs = map_aggregate(node.kwargs, _on_jax)
    if node.op != "call_method" or node.target not in _MOVES:
        return
    before, after = _device(original.args[0]), _device(original)
    if node.target in ("cpu", "cuda", "jax"):
        node.target, node.args = "to", (node.args[0], _JAX)
    if node.target == "to" and before is not None and after is not None and before != after:
        node.kwargs = {**node.kwargs, "copy": True}  # a move gives a tensor of its own


def _on_jax(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type in _ELSEWHERE:
        return _JAX
    if isinstance(value, str) and value.partition(":")[0] in _ELSEWHERE:
        return "jax"
    return value


def _viewer(
    graph: fx.GraphModule, outputs: list[Any], views: set[int], kept: list[fx.Node]
) -> fx.GraphModule | None:
    """The graph of those outputs alone, which takes them from the inputs by view operators; None if it takes more."""
    new = fx.Graph()
    twin: dict[fx.Node, Any] = {}
    inputs = [*graph.graph.find_nodes(op="placeholder"), *kept]
    for node in inputs:
        twin[node] = new.placeholder(node.name)
    known = set().union(*(_memory(n) for n in inputs))

    def copy(node: fx.Node) -> Any:
        if node in twin:
            return twin[node]
        if not _memory(node) <= known or node.op == "get_attr":
            raise LookupError(node)
        if _writes(node):  # done already: what it returns is what it wrote to
            twin[node] = copy(node.args[0])  # type: ignore[arg-type]  # a node, and no constant
        else:
            for argument in node.all_input_nodes:
                copy(argument)
            twin[node] = new.node_copy(node, twin.__getitem__)
        return twin[node]

    try:
        results = tuple(copy(o) if i in views else None for i, o in enumerate(outputs))
    except LookupError:
        return None
    new.output(results)
    return fx.GraphModule(_Root({}), new)


_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)


def _writes(node: fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
