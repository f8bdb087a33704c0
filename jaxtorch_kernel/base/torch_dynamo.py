"""One node of Dynamo's graph for a call that Dynamo cannot look into.

Dynamo puts a function into its graph if its arguments are tensors and numbers. A JAX function is called with more: the
function itself, shardings, objects with methods. `node_in_graph` takes all of these at the time of compilation, as
Python objects that the graph is valid for, and leaves the tensors as the only inputs of the node.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

import torch

from .torch_hooks import HOOKS
from .torch_private import FakeTensorMode, pytree

if TYPE_CHECKING:
    from torch._dynamo.comptime import ComptimeContext
    from torch._dynamo.variables.base import VariableTracker

# (function, args, kwargs) -> the result. With fake tensors it returns fake tensors.
Run = Callable[[Callable[..., object], Sequence[object], dict[str, object]], object]


def fake_mode(tensors: Sequence[torch.Tensor]) -> FakeTensorMode | None:
    """The mode of fake tensors in which code runs on these inputs, or None: they are real."""
    mode: FakeTensorMode | None = HOOKS.find("torch._guards.detect_fake_mode")(tensors)
    return mode


def without_fakes() -> AbstractContextManager[object]:
    """A context in which code runs on real tensors and tracers, also while Dynamo computes shapes."""
    context: AbstractContextManager[object] = HOOKS.find(
        "torch._subclasses.fake_tensor.unset_fake_temporarily"
    )()
    return context


def node_in_graph(
    run: Run,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """`run(function, args, kwargs)` as one node of the graph; only ever traced by Dynamo, never run.

    Args:
        run: runs when the graph does, and once on fake tensors while Dynamo traces.
        function: known when Dynamo traces: another object is another graph.
        args, kwargs: torch's pytrees. Their tensors are inputs of the node; everything else is like `function`.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    torch._dynamo.comptime.comptime(_emit)  # puts those of the result in their place
    return pytree.tree_unflatten(leaves, structure)


def _emit(context: ComptimeContext) -> None:
    """Add the node to the graph. Dynamo calls this while it traces `node_in_graph`, whose locals it reads and sets."""
    translator = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    known = translator.symbolic_locals
    run = cast(Run, _value(known["run"], context))
    function = cast(Callable[..., object], _value(known["function"], context))
    structure = cast(pytree.TreeSpec, _value(known["structure"], context))
    leaves: list[VariableTracker] = known["leaves"].realize().items  # type: ignore[attr-defined]  # of a list
    tensors = [i for i, leaf in enumerate(leaves) if leaf.is_tensor()]
    statics = [None if leaf.is_tensor() else _value(leaf, context) for leaf in leaves]
    results: list[pytree.TreeSpec] = []

    def node(*operands: torch.Tensor) -> tuple[object, ...]:
        filled = list(statics)
        for i, operand in zip(tensors, operands, strict=True):
            filled[i] = operand
        args, kwargs = pytree.tree_unflatten(filled, structure)
        outputs, of_results = pytree.tree_flatten(run(function, args, kwargs))
        results[:] = [of_results]
        return tuple(outputs)

    node.__name__ = node.__qualname__ = getattr(function, "__name__", type(function).__name__)
    operands = tuple(leaves[i].as_proxy() for i in tensors)
    proxy = translator.output.create_proxy("call_function", node, operands, {})
    known["leaves"] = HOOKS.find("torch._dynamo.variables.builder.wrap_fx_proxy")(translator, proxy)
    variable = HOOKS.find("torch._dynamo.variables.base.VariableTracker")
    known["structure"] = variable.build(translator, results[0])


def _value(variable: VariableTracker, context: ComptimeContext) -> object:
    """The Python object that a variable represents. The graph is valid for this object only."""
    variable = variable.realize()
    number = HOOKS.find("torch._dynamo.variables.tensor.SymNodeVariable")
    method = HOOKS.find("torch._dynamo.variables.functions.UserMethodVariable")
    if isinstance(variable, number):
        return variable.evaluate_expr()
    if isinstance(variable, method):  # a new object at each access
        # The owner has another name since torch 2.15.
        owner = variable.im_self if hasattr(variable, "im_self") else variable.obj
        return types.MethodType(variable.get_function(), _value(owner, context))
    try:
        value = variable.guard_as_python_constant()
    except (NotImplementedError, HOOKS.find("torch._dynamo.exc.Unsupported", instead=())):
        context.graph_break(
            "call_jax takes tensors, and values that are known when the graph is traced; a function that holds tensors "
            "(in a closure or a container of JAX) is neither: pass each tensor as an argument"
        )
    # For a function Dynamo checks the code alone, which may have been given other values to work with.
    if isinstance(value, types.FunctionType) and variable.source is not None:
        builder = HOOKS.find("torch._dynamo.guards.GuardBuilder")
        guard = variable.source.make_guard(builder.ID_MATCH)
        HOOKS.find("torch._dynamo.guards.install_guard")(guard)
    return value
