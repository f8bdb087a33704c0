"""Hoists the stacking of layers' parameters out of a captured program (`programs/stacking.py` says why).

`scan_layers` stacks with its own primitive, `stack`, which can be found in the jaxpr of the enclosing program. If all
its operands are inputs of the program, the stacked array becomes the input instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Literal, Primitive, Var
from jax.interpreters import ad, batching, mlir

from ..programs.compiled import CompiledFunction
from ..programs.stacking import StackedFunction, Stacks, stackable, stacked_aval
from .captured import Captured

Array = Any
_stack_p = Primitive("stack_layers")


def stack(arrays: Sequence[Array], numbers: Sequence[Array]) -> Array:
    """`jnp.stack`, to be found again.

    Args:
        arrays: what to stack.
        numbers: 0, 1, 2, ..., by which gradients are taken apart. Where they are inputs of the program, XLA makes one
            kernel for all gradients of a shape; a slice that begins at a constant has its own, which takes it 20 ms.
    """
    return _stack_p.bind(*arrays, *numbers)


def _stack(*operands: Array) -> Array:
    return jnp.stack(operands[: len(operands) // 2])


def _abstract(*avals: ShapedArray) -> ShapedArray:
    return avals[0].update(shape=(len(avals) // 2, *avals[0].shape))


def _jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Array]:
    count = len(primals) // 2
    moved = [ad.instantiate_zeros(t) for t in tangents[:count]]
    return _stack_p.bind(*primals), stack(moved, primals[count:])


def _transposed(cotangent: Any, *operands: Any) -> list[Any]:
    count = len(operands) // 2
    if type(cotangent) is ad.Zero:
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in operands]
    rows = [jax.lax.dynamic_index_in_dim(cotangent, i, 0, False) for i in operands[count:]]
    return [*rows, *([None] * count)]


def _batched(operands: Sequence[Array], dims: Sequence[Any]) -> tuple[Array, int]:
    count = len(operands) // 2
    (size,) = {a.shape[d] for a, d in zip(operands, dims, strict=True) if d is not None}
    moved = [
        jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)
        for a, d in zip(operands[:count], dims, strict=False)
    ]
    return stack(moved, operands[count:]), 1


_stack_p.def_impl(_stack)
_stack_p.def_abstract_eval(_abstract)
mlir.register_lowering(_stack_p, mlir.lower_fun(_stack, multiple_results=False))
ad.primitive_jvps[_stack_p] = _jvp
ad.primitive_transposes[_stack_p] = _transposed
batching.primitive_batchers[_stack_p] = _batched


def compiled(
    captured: Captured, inputs: Sequence[int], donated: Sequence[int], name: str
) -> CompiledFunction:
    """The programs of what was captured, their stacks hoisted.

    Args:
        captured: what was captured.
        inputs: which of its inputs a gradient may be asked for.
        donated: inputs whose memory the forward program without residuals may reuse.
        name: what the program is called.
    """
    stacks = _hoisted(captured, inputs, donated)
    if stacks is None:
        return CompiledFunction(captured.function, captured.avals, inputs, donated, name)
    return StackedFunction(captured.function, captured.avals, inputs, donated, name, stacks)


def _hoisted(captured: Captured, inputs: Sequence[int], donated: Sequence[int]) -> Stacks | None:
    if not any(eqn.primitive is _stack_p for eqn in captured.jaxpr.eqns):
        return None
    sources = _sources(captured)
    columns = _columns(captured, sources, set(inputs), set(donated))
    if not columns:
        return None
    groups: dict[Any, list[tuple[int, ...]]] = {}
    for column in columns:
        sharding = captured.avals[column[0]].sharding
        groups.setdefault((len(column), getattr(sharding, "mesh", sharding)), []).append(column)
    ordered = [column for group in groups.values() for column in group]
    equations, needed = _remaining(captured.jaxpr, sources, columns)
    pairs = list(zip(captured.jaxpr.constvars, captured.constants, strict=True))
    read = {c for var, c in pairs if type(c) is int and var in needed}
    kept = sorted({*read, *inputs, *donated} - {i for column in columns for i in column})
    # The program's own inputs: those kept, then the stacks.
    places = {i: place for place, i in enumerate(kept)}
    variables = {var: places[c] if type(c) is int else c for var, c in pairs if var in needed}
    for eqn in captured.jaxpr.eqns:
        if (own := _column(eqn, sources)) in columns:
            variables[eqn.outvars[0]] = len(kept) + ordered.index(own)
    jaxpr = captured.jaxpr.replace(constvars=list(variables), eqns=equations)
    differentiable = [places[i] for i in inputs if i in places]
    differentiable += [len(kept) + n for n, column in enumerate(ordered) if column[0] in inputs]
    return Stacks(
        replace(captured, jaxpr=jaxpr, constants=list(variables.values())).function,
        [captured.avals[i] for i in kept]
        + [stacked_aval(captured.avals[c[0]], len(c)) for c in ordered],
        kept,
        [[list(row) for row in zip(*group, strict=True)] for group in groups.values()],
        differentiable,
    )


def _sources(captured: Captured) -> dict[Any, int]:
    """Variable -> the input that it is: those that only rename one, as a read does, among them."""
    constants = zip(captured.jaxpr.constvars, captured.constants, strict=True)
    sources = {var: i for var, i in constants if type(i) is int}
    for eqn in captured.jaxpr.eqns:
        if _renames(eqn) and eqn.invars[0] in sources:
            sources[eqn.outvars[0]] = sources[eqn.invars[0]]
    return sources


def _renames(eqn: Any) -> bool:
    # Literals are not hashable.
    return (
        eqn.primitive.name in ("reshape", "stop_gradient")
        and not isinstance(eqn.invars[0], Literal)
        and eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape
    )


def _column(eqn: Any, sources: dict[Any, int]) -> tuple[int, ...] | None:
    """The inputs that an equation stacks."""
    if eqn.primitive is not _stack_p:
        return None
    found = tuple(sources.get(var, -1) for var in eqn.invars[: len(eqn.invars) // 2])
    return None if -1 in found else found


def _columns(
    captured: Captured, sources: dict[Any, int], inputs: set[int], donated: set[int]
) -> dict[tuple[int, ...], None]:
    """The stacks that can be inputs, each once: of what nothing else reads, for its gradient would have two parts."""
    columns: dict[tuple[int, ...], None] = {}
    read = list(captured.jaxpr.outvars)
    for eqn in captured.jaxpr.eqns:
        column = _column(eqn, sources)
        if column is not None:
            columns[column] = None
        elif not _renames(eqn):
            read += eqn.invars
    uses = Counter(i for column in columns for i in column)
    uses.update(sources[var] for var in read if isinstance(var, Var) and var in sources)
    return {
        column: None
        for column in columns
        if all(uses[i] == 1 and i not in donated for i in column)
        and len({i in inputs for i in column}) == 1
        and len({captured.avals[i].sharding for i in column}) == 1
        and stackable(captured.avals[column[0]])
    }


def _remaining(
    jaxpr: Any, sources: dict[Any, int], columns: dict[tuple[int, ...], None]
) -> tuple[list[Any], set[Any]]:
    """The equations that are left without these stacks and their reads, and the variables that they read."""
    needed = {var for var in jaxpr.outvars if isinstance(var, Var)}
    equations = []
    for eqn in reversed(jaxpr.eqns):
        unread = _renames(eqn) and eqn.outvars[0] not in needed
        if not unread and _column(eqn, sources) not in columns:
            equations.append(eqn)
            needed.update(var for var in eqn.invars if isinstance(var, Var))
    return equations[::-1], needed
