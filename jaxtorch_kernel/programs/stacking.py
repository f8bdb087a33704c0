"""Inputs of the same shape, stacked into one before a program runs; their gradients are split afterwards.

A loop over layers reads each layer's parameters from stacked arrays. If the loop's program did the stacking, it would
have an input and a gradient for each parameter of each layer, and XLA needs tens of milliseconds to compile each. So
two small programs do it outside, for a few layers at a time: `put` writes rows of the stacked arrays, `take` reads
them. The total number of rows is only a bound for them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from .compiled import Compiled, FlatFunction, build
from .stats import Source, Trace

Aval = jax.ShapeDtypeStruct
_ROWS = 4  # handled by one call: more are not faster, and take longer to compile
Array = Any
_CAUSE = Trace(Source("stacking of layers", "scan"))


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
        self.records = self._inner.records

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
    count = min(_ROWS, len(rows))
    empty, put = _stacking(tuple(map(aval_of, rows[0])), len(rows), count)
    carry = empty()
    for i in range(0, len(rows), count):
        # The last block may begin in the one before, as an index that is too large does in XLA.
        block = rows[min(i, len(rows) - count) :][:count]
        carry = put(*carry, *itertools.chain.from_iterable(block))
    return list(carry[1:])


def split(stacked: Sequence[Array]) -> list[list[Array]]:
    """The rows of stacked arrays."""
    depth, width = stacked[0].shape[0], len(stacked)
    count = min(_ROWS, depth)
    index, take = _splitting(tuple(map(aval_of, stacked)), count)
    rows: list[list[Array]] = []
    for i in range(0, depth, count):
        index, *block = take(index, *stacked)
        known = max(0, i + count - depth)  # the block begins earlier
        rows += [block[j * width : (j + 1) * width] for j in range(known, count)]
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


def counter(sharding: Any) -> Aval:
    """The number of a row, beside arrays placed like this. It stays on the device: the programs count."""
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return Aval((), np.dtype(np.int32), sharding=sharding)


@functools.cache
def _stacking(
    row: tuple[Aval, ...], depth: int, count: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(nothing stacked yet, `count` more rows)."""
    carry = [counter(row[0].sharding), *(stacked_aval(aval, depth) for aval in row)]
    width = len(row)

    def empty() -> list[Array]:
        return [jnp.zeros(aval.shape, aval.dtype) for aval in carry]

    def put(index: Array, *arrays: Array) -> list[Array]:
        new = arrays[width:]
        blocks = [jnp.stack(new[column::width]) for column in range(width)]
        update = jax.lax.dynamic_update_slice_in_dim
        return [
            index + count,
            *(update(a, b, index, 0) for a, b in zip(arrays, blocks, strict=False)),
        ]

    places = [aval.sharding for aval in carry]
    return (
        build(empty, [], name="stack (new)", out=places, cause=_CAUSE).call,
        build(put, [*carry, *row * count], range(1, width + 1), "stack", places, _CAUSE).call,
    )


@functools.cache
def _splitting(stacked: tuple[Aval, ...], count: int) -> tuple[Array, Callable[..., Any]]:
    """(the first row's number; `count` rows, and the number of the next)."""
    index = counter(stacked[0].sharding)

    def take(index: Array, *arrays: Array) -> list[Array]:
        blocks = [jax.lax.dynamic_slice_in_dim(a, index, count, 0) for a in arrays]
        return [index + count, *(block[i] for i in range(count) for block in blocks)]

    rows = [_row_sharding(aval.sharding) for aval in stacked]
    first = jax.device_put(np.int32(0), index.sharding)
    places = [index.sharding, *rows * count]
    program = build(take, [index, *stacked], name="split", out=places, cause=_CAUSE)
    return first, program.call


def _row_sharding(sharding: Any) -> Any:
    """The placement of a row of an array that is placed like this; None leaves it to XLA."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(*tuple(sharding.spec)[1:]))
    return sharding if isinstance(sharding, SingleDeviceSharding) else None


def forget() -> None:
    """Drop the programs: the next stacks recompile theirs."""
    _stacking.cache_clear()
    _splitting.cache_clear()
