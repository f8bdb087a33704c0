"""Inputs of one shape as one input: stacked before a program runs, their gradients split after it.

A loop over layers reads each layer's parameters from stacked arrays. Were the stacking a part of the loop's program,
that program would have an input and a gradient for each parameter of each layer, and XLA takes tens of milliseconds for
each. So it happens outside, by two small programs that run once a layer: `put` writes one row of the stacked arrays,
`take` reads one. How many rows there are is only a bound in them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from .compiled import Compiled, FlatFunction, build

Aval = jax.ShapeDtypeStruct
Array = Any


@dataclass
class Stacks:
    """A function whose inputs are some of another's as they are, then stacks of others.

    Args:
        function: the function.
        avals: of its inputs.
        kept: the other's inputs that it takes as they are.
        groups: the other's inputs that are stacked: `groups[g][row][column]`.
        inputs: those of its inputs that have a gradient.
    """

    function: FlatFunction
    avals: list[Aval]
    kept: list[int]
    groups: list[list[list[int]]]
    inputs: list[int] = field(default_factory=list)

    def pack(self, arrays: Sequence[Array]) -> list[Array]:
        """Its inputs, from the other's."""
        packed = [arrays[i] for i in self.kept]
        for group in self.groups:
            packed += stack([[arrays[i] for i in row] for row in group])
        return packed

    def unpack(self, gradients: Sequence[Array]) -> dict[int, Array]:
        """The gradients of the other's inputs, from those of `inputs`."""
        of = dict(zip(self.inputs, gradients, strict=True))
        found = {i: of[place] for place, i in enumerate(self.kept) if place in of}
        first = len(self.kept)
        for group in self.groups:
            columns = [c for c in range(len(group[0])) if first + c in of]
            rows = split([of[first + c] for c in columns]) if columns else []
            for own, row in zip(group, rows, strict=False):
                found.update((own[c], array) for c, array in zip(columns, row, strict=True))
            first += len(group[0])
        return found


class Stacked(Compiled):
    """A `Compiled` whose programs are those of `stacks`. What is derived from it sees the function as it is."""

    def __init__(
        self,
        function: FlatFunction,
        avals: Sequence[Aval],
        inputs: Sequence[int],
        donated: Sequence[int],
        name: str,
        stacks: Stacks,
    ):
        super().__init__(function, avals, inputs, donated, name)
        given = [stacks.kept.index(i) for i in donated]
        self._stacks = stacks
        self._inner = Compiled(stacks.function, stacks.avals, stacks.inputs, given, name)

    def run_saving(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        done = self._inner.run_saving(self._stacks.pack(arrays))
        self.outputs = self._inner.outputs
        return done

    def pull_back(self, saved: Sequence[Array], cotangents: Sequence[Array]) -> list[Array]:
        gradients = self._stacks.unpack(self._inner.pull_back(saved, cotangents))
        return [gradients[i] for i in self.inputs]

    def compile(self) -> Any:
        run, pack = self._inner.compile(), self._stacks.pack
        self.outputs = self._inner.outputs
        self.forward = lambda *arrays: run(*pack(arrays))
        return self.forward

    def compile_saving(self) -> None:
        self._inner.compile_saving()


def stack(rows: Sequence[Sequence[Array]]) -> list[Array]:
    """Stack the columns of `rows`."""
    empty, put = _stacking(tuple(map(aval_of, rows[0])), len(rows))
    carry = empty()
    for row in rows:
        carry = put(*carry, *row)
    return list(carry[1:])


def split(stacked: Sequence[Array]) -> list[list[Array]]:
    """The rows of stacked arrays."""
    first, take = _splitting(tuple(map(aval_of, stacked)))
    index, rows = first, []
    for _ in range(stacked[0].shape[0]):
        index, *row = take(index, *stacked)
        rows.append(row)
    return rows


def aval_of(array: Array) -> Aval:
    """Shape, dtype and placement."""
    return Aval(array.shape, array.dtype, sharding=array.sharding)


def stackable(aval: Aval) -> bool:
    """Whether it can be said where a stack of arrays like this would be."""
    return isinstance(aval.sharding, NamedSharding | SingleDeviceSharding)


def stacked_aval(aval: Aval, depth: int) -> Aval:
    """The stack of `depth` arrays like `aval`, each row placed as it is."""
    sharding = aval.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return Aval((depth, *aval.shape), aval.dtype, sharding=sharding)


def _counter(sharding: Any) -> Aval:
    """The number of a row, beside arrays placed like this. It stays on the device: the programs count."""
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return Aval((), np.dtype(np.int32), sharding=sharding)


@functools.cache
def _stacking(row: tuple[Aval, ...], depth: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(nothing stacked yet, one more row)."""
    carry = [_counter(row[0].sharding), *(stacked_aval(aval, depth) for aval in row)]
    count = len(carry)

    def empty() -> list[Array]:
        return [jnp.zeros(aval.shape, aval.dtype) for aval in carry]

    def put(index: Array, *arrays: Array) -> list[Array]:
        update = jax.lax.dynamic_update_index_in_dim
        pairs = zip(arrays[: count - 1], arrays[count - 1 :], strict=True)
        return [index + 1, *(update(whole, own, index, 0) for whole, own in pairs)]

    places = [aval.sharding for aval in carry]
    return (
        build(empty, [], name="stack (new)", out=places).call,
        build(put, [*carry, *row], range(1, count), "stack", places).call,
    )


@functools.cache
def _splitting(stacked: tuple[Aval, ...]) -> tuple[Array, Callable[..., Any]]:
    """(the first row's number, a row and the number of the next)."""
    index = _counter(stacked[0].sharding)

    def take(index: Array, *arrays: Array) -> list[Array]:
        return [index + 1, *(jax.lax.dynamic_index_in_dim(a, index, 0, False) for a in arrays)]

    places = [index.sharding, *(_row_sharding(aval.sharding) for aval in stacked)]
    first = jax.device_put(np.int32(0), index.sharding)
    return first, build(take, [index, *stacked], name="split", out=places).call


def _row_sharding(sharding: Any) -> Any:
    """Where a row of an array placed like this goes; None is XLA's choice."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return sharding if isinstance(sharding, SingleDeviceSharding) else None
