"""Prepares the FX graphs of `torch.compile` for `pure`.

Such a graph names the devices of the original code. Here all of it runs on the jax device: device names are replaced,
and outputs that belong to another device are moved there at the end. Two things are found from the fake tensors that
Dynamo leaves on the nodes: the inputs that the graph writes, and the outputs that are views of inputs. Such views are
computed from the inputs themselves, outside the program, so that they share their memory (`viewer`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

import torch
from torch import fx
from torch.fx.node import Argument, map_aggregate

from ..base.torch_private import pytree

Tensor = torch.Tensor

_JAX = torch.device("jax", 0)
_ELSEWHERE = ("cpu", "cuda")
_MOVES = ("to", "cpu", "cuda", "jax", "type")


class DeviceGraph:
    """A graph that runs on the jax device, and how to call it.

    Attributes:
        module: takes the inputs and then the tensors of `attributes`; returns the outputs, with None for `views`.
        attributes: names of tensors that are attributes of the graph.
        names: of the inputs and attributes, for views.
        floats: inputs that are Python floats, which Dynamo passes as tensors.
        unused: inputs that no node reads.
        statics: numbers whose value the code needs (a size).
        written: inputs that in-place operators write to (running statistics are not seen here).
        devices: of the outputs (None for non-tensors).
        views: outputs that are views of inputs.
        viewer: a graph of view operators that computes these from the inputs.
    """

    def __init__(self, graph: fx.GraphModule):
        nodes = list(graph.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        attributes = [
            n for n in nodes if n.op == "get_attr" and isinstance(_attribute(graph, n), Tensor)
        ]
        outputs = list(nodes[-1].args[0])
        self.attributes = [str(n.target) for n in attributes]
        self.names = [*(_input_name(str(n.target)) for n in inputs), *self.attributes]
        self.floats = {i for i, n in enumerate(inputs) if _is_float(n)}
        self.unused = [i for i, n in enumerate(inputs) if not n.users]
        self.statics = {i for i, n in enumerate(inputs) if not _is_operand(n)}
        self.written = {i for i, n in enumerate([*inputs, *attributes]) if _is_written(n)}
        self.devices = [_device(o) for o in outputs]
        self.views = _views_of(outputs, [*inputs, *attributes])
        self.viewer = _viewer(graph, outputs, self.views, attributes) if self.views else None
        if self.viewer is None:
            self.views = set()
        self.module = _on_device(graph, attributes, self.floats, self.views)


def _attribute(graph: fx.GraphModule, node: fx.Node) -> object:
    value: object = operator.attrgetter(str(node.target))(graph)
    return value


_TABLE = re.compile(r"_(?:modules|parameters|buffers)_")


def _input_name(target: str) -> str:
    """The name of an input, from the path that Dynamo writes as an identifier.

    Example:
        >>> _input_name("L_self_modules_0_parameters_weight_"), _input_name("L_x_")
        ('model.0.weight', 'x')
    """
    path = target.removeprefix("L_").removeprefix("G_").rstrip("_")
    first, *rest = _TABLE.split(path)
    return ".".join(["model" if rest and first in ("self", "fn") else first, *rest])


def _fakes(node: object) -> list[Tensor]:
    """The fake tensors of a node's result."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _device(output: object) -> torch.device | None:
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
    """Whether a number is used only in arithmetic with tensors, so that it can be an operand of the program."""
    users = [v for u in node.users for v in u.users] if _is_float(node) else list(node.users)
    return all(u.target in _ARITHMETIC and bool(_fakes(u)) for u in users)


def _is_written(node: fx.Node) -> bool:
    return any(fake._version > 0 for fake in _fakes(node))


def _memory(node: object) -> set[int]:
    return {fake.untyped_storage()._cdata for fake in _fakes(node)}


def _views_of(outputs: Sequence[object], inputs: list[fx.Node]) -> set[int]:
    known = set().union(*(_memory(n) for n in inputs))
    return {i for i, o in enumerate(outputs) if _memory(o) & known}


def _on_device(
    graph: fx.GraphModule, attributes: list[fx.Node], floats: set[int], views: set[int]
) -> fx.GraphModule:
    """The graph on the jax device."""
    new = fx.Graph()
    twin: dict[fx.Node, fx.Node] = {}
    inputs = graph.graph.find_nodes(op="placeholder")
    for i, node in enumerate(inputs):
        twin[node] = new.placeholder(node.name)
        if i in floats:
            twin.update(dict.fromkeys(node.users, twin[node]))
    for node in attributes:
        twin[node] = new.placeholder(node.name)
    for node in graph.graph.nodes:
        if node in twin:
            continue
        if node.op == "output":
            results = node.args[0]
            if isinstance(results, list | tuple):  # the body of a hook returns one value
                results = tuple(None if i in views else o for i, o in enumerate(results))
            new.output(fx.map_arg(results, twin.__getitem__))
        else:
            copy = twin[node] = new.node_copy(node, twin.__getitem__)
            _move_result(copy, node)
    root = {
        name: _body_on_device(part) if isinstance(part, fx.GraphModule) else part
        for name, part in graph.named_children()
    }
    return fx.GraphModule(_Root(root), new)


class _Root(torch.nn.Module):
    def __init__(self, parts: dict[str, torch.nn.Module]):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def _body_on_device(graph: fx.GraphModule) -> fx.GraphModule:
    """The body of a higher-order operator, on the jax device: its inputs are there already."""
    return _on_device(graph, [], set(), set())


def _move_result(node: fx.Node, original: fx.Node) -> None:
    """Change a node so that its result is on the jax device."""
    node.args = map_aggregate(node.args, _on_jax)
    node.kwargs = map_aggregate(node.kwargs, _on_jax)
    if node.op != "call_method" or node.target not in _MOVES:
        return
    before, after = _device(original.args[0]), _device(original)
    if node.target in ("cpu", "cuda", "jax"):
        node.target, node.args = "to", (node.args[0], _JAX)
    if node.target == "to" and before is not None and after is not None and before != after:
        node.kwargs = {**node.kwargs, "copy": True}  # a move between devices makes a new tensor


def _on_jax(value: Argument) -> Argument:
    if isinstance(value, torch.device) and value.type in _ELSEWHERE:
        return _JAX
    if isinstance(value, str) and value.partition(":")[0] in _ELSEWHERE:
        return "jax"
    return value


def _viewer(
    graph: fx.GraphModule, outputs: list[Argument], views: set[int], attributes: list[fx.Node]
) -> fx.GraphModule | None:
    """The graph of the outputs that are views, from the inputs; None if it needs more than view operators."""
    new = fx.Graph()
    twin: dict[fx.Node, fx.Node] = {}
    inputs = [*graph.graph.find_nodes(op="placeholder"), *attributes]
    for node in inputs:
        twin[node] = new.placeholder(node.name)
    known = set().union(*(_memory(n) for n in inputs))

    def copy(node: fx.Node) -> fx.Node:
        if node in twin:
            return twin[node]
        if not _memory(node) <= known or node.op == "get_attr":
            raise LookupError(node)
        if written := _written(node):  # by the program, and it is the result
            twin[node] = copy(written)
        else:
            for argument in node.all_input_nodes:
                copy(argument)
            twin[node] = new.node_copy(node, twin.__getitem__)
        return twin[node]

    try:
        results = tuple(
            copy(o) if i in views and isinstance(o, fx.Node) else None
            for i, o in enumerate(outputs)
        )
    except LookupError:
        return None
    new.output(results)
    return fx.GraphModule(_Root({}), new)


_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)


def _written(node: fx.Node) -> fx.Node | None:
    """The tensor that a node writes to and returns; also one of those that `_foreach_add_` returns in a list."""
    target: Argument = node.args[0] if _writes(node) else None
    if node.target is operator.getitem:
        writer, index = node.args
        if isinstance(writer, fx.Node) and isinstance(index, int) and _writes(writer):
            written = writer.args[0]
            target = written[index] if isinstance(written, list | tuple) else None
    return target if isinstance(target, fx.Node) else None


def _writes(node: fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
