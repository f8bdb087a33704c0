"""The stacking of layers' parameters, taken out of a captured program (`interop/stacking.py` says why).

`scan_layers` stacks by a primitive of its own, `stack`, which is found again in the jaxpr of whatever it was called in:
where all that it stacks are inputs, the stack itself becomes the input.
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

from ..interop.compiled import Compiled
from ..interop.stacking import Stacked, Stacks, stackable, stacked_aval
from .captured import Captured

Array = Any
_stack_p = Primitive("stack_layers")


def stack(arrays: Sequence[Array]) -> Array:
    """`jnp.stack`, to be found again."""
    return _stack_p.bind(*arrays)


def _stack(*arrays: Array) -> Array:
    return jnp.stack(arrays)


def _abstract(*avals: ShapedArray) -> ShapedArray:
    return avals[0].update(shape=(len(avals), *avals[0].shape))


def _transposed(cotangent: Any, *arrays: Array) -> list[Any]:
    if type(cotangent) is ad.Zero:
        aval: Any = cotangent.aval
        return [ad.Zero(aval.update(shape=aval.shape[1:])) for _ in arrays]
    return [jax.lax.index_in_dim(cotangent, i, keepdims=False) for i in range(len(arrays))]


def _batched(arrays: Sequence[Array], dims: Sequence[Any]) -> tuple[Array, int]:
    (size,) = {a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None}
    moved = [
        jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)
        for a, d in zip(arrays, dims, strict=True)
    ]
    return stack(moved), 1


_stack_p.def_impl(_stack)
_stack_p.def_abstract_eval(_abstract)
mlir.register_lowering(_stack_p, mlir.lower_fun(_stack, multiple_results=False))
ad.deflinear2(_stack_p, _transposed)
batching.primitive_batchers[_stack_p] = _batched


def compiled(
    captured: Captured, inputs: Sequence[int], donated: Sequence[int], name: str
) -> Compiled:
    """The programs of what was captured, their stacks hoisted.

    Args:
        captured: what was captured.
        inputs: which of its inputs a gradient may be asked for.
        donated: inputs whose memory the forward program without residuals may reuse.
        name: what the program is called.
    """
    stacks = _hoisted(captured, inputs, donated)
    if stacks is None:
        return Compiled(captured.function, captured.avals, inputs, donated, name)
    return Stacked(captured.function, captured.avals, inputs, donated, name, stacks)


def _hoisted(captured: Captured, inputs: Sequence[int], donated: Sequence[int]) -> Stacks | None:
    if not any(eqn.primitive is _stack_p for eqn in captured.jaxpr.eqns):
        return None
    sources = _sources(captured)
    columns = _columns(captured, sources, set(inputs), set(donated))
    if not columns:
        return None
    stacked = {i for column in columns for i in column}
    kept = [i for i in range(len(captured.avals)) if i not in stacked]
    groups: dict[Any, list[tuple[int, ...]]] = {}
    for column in columns:
        sharding = captured.avals[column[0]].sharding
        groups.setdefault((len(column), getattr(sharding, "mesh", sharding)), []).append(column)
    ordered = [column for group in groups.values() for column in group]
    avals = [captured.avals[i] for i in kept]
    avals += [stacked_aval(captured.avals[c[0]], len(c)) for c in ordered]
    places = {kept_at: place for place, kept_at in enumerate(kept)}
    places.update((c[0], len(kept) + n) for n, c in enumerate(ordered))
    return Stacks(
        _function(captured, sources, columns, places),
        avals,
        kept,
        [[list(row) for row in zip(*group, strict=True)] for group in groups.values()],
        sorted(places[i] for i in inputs if i in places),
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
    found = tuple(sources.get(var, -1) for var in eqn.invars)
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


def _function(
    captured: Captured,
    sources: dict[Any, int],
    columns: dict[tuple[int, ...], None],
    places: dict[int, int],
) -> Any:
    """The captured function with these stacks for inputs, at `places` (by their first element)."""
    jaxpr = captured.jaxpr
    stacked = {i for column in columns for i in column}
    variables, constants, equations = [], [], []
    for var, constant in zip(jaxpr.constvars, captured.constants, strict=True):
        if type(constant) is not int or constant not in stacked:
            variables.append(var)
            constants.append(places[constant] if type(constant) is int else constant)
    for eqn in jaxpr.eqns:
        column = _column(eqn, sources)
        if column in columns:
            variables.append(eqn.outvars[0])
            constants.append(places[column[0]])
        elif not (_renames(eqn) and sources.get(eqn.outvars[0]) in stacked):
            equations.append(eqn)
    new = jaxpr.replace(constvars=variables, eqns=equations)
    return replace(captured, jaxpr=new, constants=constants).function
