"""Stacks inputs of the same shape into one array before a program runs, and splits their gradients afterwards.

A loop over layers reads each layer's parameters from stacked arrays. If the loop's program did the stacking, it would
have an input and a gradient for each parameter of each layer, and XLA needs tens of milliseconds to compile each. So
two small programs do it outside, for a few layers at a time: `put` writes rows of the stacked arrays, `take` reads
them. The index of the rows is an operand, so one program serves them all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ..base.naming import stacked
from .compiled import Aval, CompiledFunction, FlatFunction, build
from .compiling import Executable
from .stats import FunctionRecord, TraceRecord

Array = jax.Array
_ROWS = 4  # rows handled by one call: more are not faster, and take longer to compile
_CAUSE = TraceRecord(FunctionRecord("stacking of layers", "engine"))


@dataclass
class Stacks:
    """A function with stacked inputs, derived from one whose inputs are separate (the original).

    Its inputs are first some inputs of the original, unchanged, and then stacks of others.

    Args:
        function: the function with stacked inputs.
        avals: its inputs.
        unstacked: indices of the original's inputs that are passed unchanged.
        groups: indices of the original's inputs that are stacked: `groups[g][row][column]`.
        inputs: indices of its own inputs that have a gradient.
    """

    function: FlatFunction
    avals: list[Aval]
    unstacked: list[int]
    groups: list[list[list[int]]]
    inputs: list[int] = field(default_factory=list)

    def pack(self, arrays: Sequence[Array]) -> list[Array]:
        """Its inputs, made from those of the original."""
        packed = [arrays[i] for i in self.unstacked]
        for group in self.groups:
            packed += stack([[arrays[i] for i in row] for row in group])
        return packed

    def names(self, names: Sequence[str]) -> list[str]:
        """The names of its inputs, made from those of the original."""
        columns = (column for group in self.groups for column in zip(*group, strict=True))
        unchanged = [names[i] for i in self.unstacked]
        return [*unchanged, *(stacked([names[i] for i in column]) for column in columns)]

    def unpack(self, gradients: Sequence[Array]) -> dict[int, Array]:
        """The gradients of the original's inputs, by index, from the gradients of `inputs`."""
        by_input = dict(zip(self.inputs, gradients, strict=True))
        unpacked = {i: by_input[n] for n, i in enumerate(self.unstacked) if n in by_input}
        first = len(self.unstacked)
        for group in self.groups:
            columns = [c for c in range(len(group[0])) if first + c in by_input]
            rows = split([by_input[first + c] for c in columns]) if columns else []
            for indices, row in zip(group, rows, strict=False):
                unpacked.update((indices[c], g) for c, g in zip(columns, row, strict=True))
            first += len(group[0])
        return unpacked


class StackedFunction(CompiledFunction):
    """A `CompiledFunction` that runs the programs of `stacks`.

    `function` and `avals` are those of the original, for functions that are derived from it.
    """

    def __init__(
        self,
        function: FlatFunction,
        avals: Sequence[Aval],
        inputs: Sequence[int],
        donated: Sequence[int],
        name: str,
        stacks: Stacks,
        names: Sequence[str],
        meshes: Sequence[Sharding] = (),
    ):
        super().__init__(function, avals, inputs, donated, name, input_names=names, meshes=meshes)
        donated_here = [stacks.unstacked.index(i) for i in donated]
        self._stacks = stacks
        self._inner = CompiledFunction(
            stacks.function,
            stacks.avals,
            stacks.inputs,
            donated_here,
            name,
            input_names=stacks.names(names),
            meshes=meshes,
        )
        self.records = self._inner.records

    def run_saving(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        done = self._inner.run_saving(self._stacks.pack(arrays))
        self.outputs = self._inner.outputs
        return done

    def pull_back(self, saved: Sequence[Array], cotangents: Sequence[Array]) -> list[Array]:
        gradients = self._stacks.unpack(self._inner.pull_back(saved, cotangents))
        return [gradients[i] for i in self.inputs]

    def compile(self) -> Executable:
        run, pack = self._inner.compile(), self._stacks.pack
        self.outputs = self._inner.outputs
        self.forward = lambda *arrays: run(*pack(arrays))
        return self.forward

    def compile_saving(self) -> Executable:
        return self._inner.compile_saving()


def stack(rows: Sequence[Sequence[Array]]) -> list[Array]:
    """Stack the columns of `rows`."""
    count = min(_ROWS, len(rows))
    empty, put = _stacking(tuple(map(aval_of, rows[0])), len(rows), count)
    carry = empty()
    for i in range(0, len(rows), count):
        # The last block may overlap the one before, because XLA clamps an index that is too large.
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
        known = max(0, i + count - depth)  # rows of the block that the one before had
        rows += [block[j * width : (j + 1) * width] for j in range(known, count)]
    return rows


def aval_of(array: Array) -> Aval:
    """Shape, dtype and placement of an array."""
    return Aval(array.shape, array.dtype, sharding=array.sharding)


def stackable(aval: Aval) -> bool:
    """Whether the placement of a stack of such arrays is known."""
    return isinstance(aval.sharding, NamedSharding | SingleDeviceSharding)


def stacked_aval(aval: Aval, depth: int) -> Aval:
    """The stack of `depth` arrays like `aval`; each row keeps its placement."""
    sharding = aval.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return Aval((depth, *aval.shape), aval.dtype, sharding=sharding)


def counter(sharding: Sharding | None) -> Aval:
    """The index of a row, on the devices of arrays with this placement. It stays there: the programs count."""
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return Aval((), np.dtype(np.int32), sharding=sharding)


@functools.cache
def _stacking(row: tuple[Aval, ...], depth: int, count: int) -> tuple[Executable, Executable]:
    """Programs that create empty stacks, and that write the next `count` rows."""
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

    shardings = [aval.sharding for aval in carry]
    return (
        build(empty, [], name="stack (new)", out=shardings, cause=_CAUSE).call,
        build(
            put,
            [*carry, *row * count],
            range(1, width + 1),
            "stack",
            shardings,
            _CAUSE,
            input_names=["index", *_numbered("stack", width), *_numbered("row", width * count)],
        ).call,
    )


@functools.cache
def _splitting(stacked: tuple[Aval, ...], count: int) -> tuple[Array, Executable]:
    """The index of the first row, and a program that reads the next `count` rows and advances the index."""
    index = counter(stacked[0].sharding)

    def take(index: Array, *arrays: Array) -> list[Array]:
        blocks = [jax.lax.dynamic_slice_in_dim(a, index, count, 0) for a in arrays]
        return [index + count, *(block[i] for i in range(count) for block in blocks)]

    rows = [_row_sharding(aval.sharding) for aval in stacked]
    first = jax.device_put(np.int32(0), index.sharding)
    shardings = [index.sharding, *rows * count]
    names = ["index", *_numbered("stack", len(stacked))]
    program = build(
        take, [index, *stacked], name="split", out=shardings, cause=_CAUSE, input_names=names
    )
    return first, program.call


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}[{i}]" for i in range(count)]


def _row_sharding(sharding: Sharding | None) -> Sharding | None:
    """The placement of a row of an array with this placement; None leaves the choice to XLA."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(*tuple(sharding.spec)[1:]))
    return sharding if isinstance(sharding, SingleDeviceSharding) else None


def forget() -> None:
    """Drop the programs; they are recompiled when needed."""
    _stacking.cache_clear()
    _splitting.cache_clear()
