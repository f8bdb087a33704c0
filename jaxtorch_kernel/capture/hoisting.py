"""Hoists the stacking of layers' parameters out of a captured program (`programs/stacking.py` says why).

`scan_layers` stacks with its own primitive, `stack_layers`, which can be found in the jaxpr of the enclosing program. A
*column* is the tuple of inputs that one equation stacks: the weights of one name in all layers. If nothing else reads
them, the stacked array becomes the input instead, and two small programs fill the stack before the program runs and
split its gradient afterwards. Columns of the same number of layers and the same mesh form a group, which is filled
together, one row (layer) after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive, Var
from jax.interpreters import ad, batching, mlir

from ..programs.compiled import CompiledFunction
from ..programs.stacking import StackedFunction, Stacks, stackable, stacked_aval
from .captured import Captured

Array = jax.Array
Column = tuple[int, ...]
_stack_p = Primitive("stack_layers")


def stack(arrays: Sequence[Array], numbers: Sequence[Array]) -> Array:
    """`jnp.stack`, as a primitive that can be found in a jaxpr.

    Args:
        arrays: what to stack.
        numbers: 0, 1, 2, ..., at which gradients are sliced. If they are inputs of the program, XLA makes one kernel
            for all gradients of a shape. For a slice that begins at a constant it makes a separate kernel, in 20 ms.
    """
    stacked: Array = _stack_p.bind(*arrays, *numbers)
    return stacked


def _stack(*operands: Array) -> Array:
    return jnp.stack(operands[: len(operands) // 2])


def _abstract(*avals: ShapedArray) -> ShapedArray:
    return avals[0].update(shape=(len(avals) // 2, *avals[0].shape))


def _jvp(primals: Sequence[Array], tangents: Sequence[Array | ad.Zero]) -> tuple[Array, Array]:
    count = len(primals) // 2
    arrays = [ad.instantiate_zeros(t) for t in tangents[:count]]
    return _stack_p.bind(*primals), stack(arrays, primals[count:])


def _transposed(
    cotangent: Array | ad.Zero, *operands: Array | ad.UndefinedPrimal
) -> list[Array | ad.Zero | None]:
    count = len(operands) // 2
    if type(cotangent) is ad.Zero:
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in operands]
    rows = [jax.lax.dynamic_index_in_dim(cotangent, i, 0, False) for i in operands[count:]]
    return [*rows, *([None] * count)]


def _batched(operands: Sequence[Array], dims: Sequence[int | None]) -> tuple[Array, int]:
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
        inputs: those of its inputs whose gradient may be requested.
        donated: inputs whose memory the forward program without residuals may reuse.
        name: the name of the program.
    """
    stacks = _hoisted(captured, inputs, donated)
    if stacks is None:
        return CompiledFunction(
            captured.function,
            captured.avals,
            inputs,
            donated,
            name,
            input_names=captured.names,
            meshes=captured.meshes,
        )
    return StackedFunction(
        captured.function,
        captured.avals,
        inputs,
        donated,
        name,
        stacks,
        captured.names,
        captured.meshes,
    )


def _hoisted(captured: Captured, inputs: Sequence[int], donated: Sequence[int]) -> Stacks | None:
    if not any(eqn.primitive is _stack_p for eqn in captured.jaxpr.eqns):
        return None
    sources = _sources(captured)
    columns = _columns(captured, sources, set(inputs), set(donated))
    if not columns:
        return None
    groups: dict[Hashable, list[Column]] = {}
    for column in columns:
        sharding = captured.avals[column[0]].sharding
        groups.setdefault((len(column), getattr(sharding, "mesh", sharding)), []).append(column)
    ordered = [column for group in groups.values() for column in group]
    equations, needed = _remaining(captured.jaxpr, sources, columns)
    pairs = list(zip(captured.jaxpr.constvars, captured.constants, strict=True))
    read = {c for var, c in pairs if isinstance(c, int) and var in needed}
    remaining = sorted({*read, *inputs, *donated} - {i for column in columns for i in column})
    # The inputs of the new program: those that remain, then the stacks.
    positions = {i: position for position, i in enumerate(remaining)}
    variables = {
        var: positions[c] if isinstance(c, int) else c for var, c in pairs if var in needed
    }
    for eqn in captured.jaxpr.eqns:
        stacked = _column(eqn, sources)
        if stacked is not None and stacked in columns:
            variables[eqn.outvars[0]] = len(remaining) + ordered.index(stacked)
    jaxpr = captured.jaxpr.replace(constvars=list(variables), eqns=equations)
    differentiable = [positions[i] for i in inputs if i in positions]
    differentiable += [len(remaining) + n for n, c in enumerate(ordered) if c[0] in inputs]
    return Stacks(
        replace(captured, jaxpr=jaxpr, constants=list(variables.values())).function,
        [captured.avals[i] for i in remaining]
        + [stacked_aval(captured.avals[c[0]], len(c)) for c in ordered],
        remaining,
        [[list(row) for row in zip(*group, strict=True)] for group in groups.values()],
        differentiable,
    )


def _sources(captured: Captured) -> dict[Var, int]:
    """The input that each variable is equal to, including variables that only rename one, as a read does."""
    constants = zip(captured.jaxpr.constvars, captured.constants, strict=True)
    sources = {var: i for var, i in constants if isinstance(i, int)}
    for eqn in captured.jaxpr.eqns:
        renamed = _renamed(eqn)
        if renamed is not None and renamed in sources:
            sources[eqn.outvars[0]] = sources[renamed]
    return sources


def _renamed(eqn: JaxprEqn) -> Var | None:
    """The variable that an equation only renames."""
    if eqn.primitive.name not in ("reshape", "stop_gradient"):
        return None
    operand, result = eqn.invars[0], eqn.outvars[0]
    if isinstance(operand, Literal) or operand.aval.shape != result.aval.shape:  # type: ignore[attr-defined]
        return None
    return operand


def _column(eqn: JaxprEqn, sources: dict[Var, int]) -> Column | None:
    """The inputs that an equation stacks."""
    if eqn.primitive is not _stack_p:
        return None
    stacked = eqn.invars[: len(eqn.invars) // 2]
    column = [sources[var] for var in stacked if isinstance(var, Var) and var in sources]
    return tuple(column) if len(column) == len(stacked) else None


def _columns(
    captured: Captured, sources: dict[Var, int], inputs: set[int], donated: set[int]
) -> dict[Column, None]:
    """The stacks that can be inputs, each once. Their operands are read by nothing else: such a read would give the
    operand a second gradient, which the program would have to add.
    """
    columns: dict[Column, None] = {}
    read = list(captured.jaxpr.outvars)
    for eqn in captured.jaxpr.eqns:
        column = _column(eqn, sources)
        if column is not None:
            columns[column] = None
        elif _renamed(eqn) is None:
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
    jaxpr: Jaxpr, sources: dict[Var, int], columns: dict[Column, None]
) -> tuple[list[JaxprEqn], set[Var]]:
    """The equations that remain without these stacks and the reads of their operands, and the variables they read."""
    needed = {var for var in jaxpr.outvars if isinstance(var, Var)}
    equations = []
    for eqn in reversed(jaxpr.eqns):
        unread = _renamed(eqn) is not None and eqn.outvars[0] not in needed
        if not unread and _column(eqn, sources) not in columns:
            equations.append(eqn)
            needed.update(var for var in eqn.invars if isinstance(var, Var))
    return equations[::-1], needed
