"""A JAX function over flat arrays, compiled for one signature: forward, forward with residuals, backward.

`jax.vjp` returns the pullback as a pytree whose leaves are the residuals. The forward program returns those leaves
(except inputs, which would be copied); the backward program takes them and the cotangents. No part of the forward runs
twice, and XLA sees each half as a whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jax.extend.core import Primitive
from jax.sharding import Sharding
from jax.tree_util import PyTreeDef

from ..base.jax_private import respect_checkpoints_within
from ..base.naming import name_inputs
from . import watching
from .compiling import Executable, building, finish
from .meshes import avals_on_mesh, with_resharded_inputs
from .packing import Packing
from .stats import ProgramRecord, TraceRecord, trace_here

Aval = jax.ShapeDtypeStruct
# arrays -> (differentiable outputs, other outputs)
FlatFunction = Callable[..., tuple[list[jax.Array], list[jax.Array]]]


# The backward program repeats operations that only move or convert elements, from their saved operands. If their
# results were saved, the transpose of every weight would be a residual.
_MOVES = {
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "expand_dims",
    "iota",
    "reshape",
    "rev",
    "slice",
    "squeeze",
    "stop_gradient",
    "transpose",
}


class Built(NamedTuple):
    """A compiled program: its entry point, which takes flat arrays, and its record."""

    call: Executable
    record: ProgramRecord


def build(
    function: Callable[..., Sequence[jax.Array]],
    avals: Sequence[Aval],
    donated: Sequence[int] = (),
    name: str = "jax",
    out: Sequence[Sharding | None] | None = None,
    cause: TraceRecord | None = None,
    part: str = "",
    input_names: Sequence[str] = (),
) -> Built:
    """Compile a function of arrays; `out`: the placements of its outputs, by default XLA's choice."""

    def program(*operands: jax.Array) -> Sequence[jax.Array]:
        return function(*operands)

    program.__name__ = program.__qualname__ = name
    if input_names:
        name_inputs(program, input_names)
    started = time.perf_counter()
    with building(name), jax.enable_x64(True):
        jitted = jax.jit(program, donate_argnums=tuple(donated), out_shardings=out)
        traced = jitted.trace(*avals)
    seconds = time.perf_counter() - started
    return Built(*finish(traced, name, seconds, avals, cause or trace_here(name), part))


def _worth_saving(primitive: Primitive, *_: object, **__: object) -> bool:
    return primitive.name not in _MOVES


respect_checkpoints_within(_worth_saving)


class CompiledFunction:
    """The programs of one signature of a function, each compiled at its first use.

    Args:
        function: takes one array for each of `avals`.
        avals: shape, dtype and placement of the inputs.
        inputs: indices of the inputs whose gradient may be requested.
        donated: indices of the inputs whose memory the forward program without residuals may reuse.
        name: the name of the programs in profiles and messages.
        cause: the trace that the programs are recorded under; by default the open one.
        input_names: what views call the inputs.
        meshes: those that the function names (`meshes.py`).
    """

    def __init__(
        self,
        function: FlatFunction,
        avals: Sequence[Aval],
        inputs: Sequence[int] = (),
        donated: Sequence[int] = (),
        name: str = "jax",
        cause: TraceRecord | None = None,
        input_names: Sequence[str] = (),
        meshes: Sequence[Sharding] = (),
    ):
        self.meshes = meshes
        on_mesh = avals_on_mesh(avals, name, meshes)
        self.on_mesh = on_mesh is not None
        self.function, self.avals, self.name = function, on_mesh or list(avals), name
        self.input_names = list(input_names)
        self.inputs, self.donated = tuple(inputs), tuple(donated)
        self.forward: Executable | None = None
        self.forward_saving: Executable | None = None
        self.backward: Executable | None = None
        self.cause = cause or trace_here(name)
        self.records: dict[str, ProgramRecord] = {}  # by `ProgramRecord.part`
        self.outputs = 0  # the number of differentiable outputs
        # The leaves of the pullback are inputs, or residuals of their own.
        self._input_of_leaf: list[int | None] = []
        self._saved_inputs: list[int] = []
        self._packing = Packing(())
        self._pullback_tree: PyTreeDef = jax.tree.structure(None)
        self._residuals: list[Aval] = []
        self._lock = threading.RLock()

    def run_saving(self, arrays: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        """All outputs, and the arrays that the backward program needs."""
        forward = self.forward_saving or self.compile_saving()
        watching.launching(self.records["saving"])
        outputs = forward(*arrays)
        self.records["saving"].calls += 1
        count = len(outputs) - len(self._residuals)
        return outputs[:count], [*(arrays[i] for i in self._saved_inputs), *outputs[count:]]

    def pull_back(
        self, saved: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """The cotangents of `inputs`."""
        backward = self.backward or self.compile_backward(cotangents, saved)
        watching.launching(self.records["backward"])
        self.records["backward"].calls += 1
        return backward(*saved, *cotangents)

    # -- compiling --------------------------------------------------------------------------------------------

    def compile(self) -> Executable:
        """The forward program, compiled."""
        with self._lock:
            if self.forward is None:
                self.forward = self._build("", self._flat, self.avals, self.donated)
            return self.forward

    def compile_saving(self) -> Executable:
        """The forward program that also returns the residuals, compiled."""
        with self._lock:
            if self.forward_saving is None:
                self.forward_saving = self._build("saving", self._saving, self.avals)
            return self.forward_saving

    def compile_backward(
        self, cotangents: Sequence[jax.Array], saved: Sequence[jax.Array]
    ) -> Executable:
        """The backward program for cotangents of these shapes, compiled.

        Args:
            cotangents: of the outputs.
            saved: what the forward program saved. On a mesh, XLA chose its sharding.
        """
        with self._lock:
            if self.backward is None:
                avals = [*(self.avals[i] for i in self._saved_inputs), *self._residuals]
                avals += [Aval(c.shape, c.dtype) for c in cotangents]
                if self.on_mesh:
                    arrays = (*saved, *cotangents)
                    given = [Aval(a.shape, a.dtype, sharding=a.sharding) for a in arrays]
                    # With the inputs, because they may be the only arrays on the mesh.
                    together = avals_on_mesh([*self.avals, *given], self.name, self.meshes)
                    assert together is not None
                    avals = together[len(self.avals) :]
                names = self._names_of_backward(len(cotangents))
                self.backward = self._build("backward", self._pull_back, avals, names=names)
            return self.backward

    def _build(
        self,
        part: str,
        function: Callable[..., Sequence[jax.Array]],
        avals: Sequence[Aval],
        donated: Sequence[int] = (),
        names: Sequence[str] | None = None,
    ) -> Executable:
        names = self.input_names if names is None else names
        built = build(
            function, avals, donated, self.name, cause=self.cause, part=part, input_names=names
        )
        self.records[part] = built.record
        return with_resharded_inputs(built.call, avals) if self.on_mesh else built.call

    def _names_of_backward(self, cotangents: int) -> list[str]:
        if not self.input_names:
            return []
        saved = [self.input_names[i] for i in self._saved_inputs]
        residuals = [f"residual[{i}]" for i in range(len(self._residuals))]
        return [*saved, *residuals, *names_of_cotangents(cotangents)]

    def _flat(self, *arrays: jax.Array) -> list[jax.Array]:
        outputs, others = self.function(*arrays)
        self.outputs = len(outputs)
        return [*outputs, *others]

    def _saving(self, *arrays: jax.Array) -> list[jax.Array]:
        function = self.of_inputs(arrays)
        checkpointed = jax.checkpoint(function, policy=_worth_saving, prevent_cse=False)
        primals = [arrays[i] for i in self.inputs]
        try:
            outputs, pullback, others = jax.vjp(checkpointed, *primals, has_aux=True)
        except TypeError as error:
            if "reduce_precision" not in str(error):
                raise
            # JAX rounds saved values to their own dtype, but has no such operation for complex numbers: save all.
            outputs, pullback, others = jax.vjp(function, *primals, has_aux=True)
        self.outputs = len(outputs)
        leaves, self._pullback_tree = jax.tree.flatten(pullback)
        index = {id(a): i for i, a in enumerate(arrays)}
        self._input_of_leaf = [index.get(id(leaf)) for leaf in leaves]
        self._saved_inputs = sorted({i for i in self._input_of_leaf if i is not None})
        residuals = [leaf for leaf, i in zip(leaves, self._input_of_leaf, strict=True) if i is None]
        # To concatenate arrays over several devices, XLA would gather them on one.
        self._packing = Packing(residuals) if self._one_device() else Packing(residuals, largest=-1)
        packed = self._packing.pack(residuals)
        self._residuals = [Aval(leaf.shape, leaf.dtype) for leaf in packed]
        return [*outputs, *others, *packed]

    def _one_device(self) -> bool:
        shardings = [aval.sharding for aval in self.avals]
        return all(s is None or len(s.device_set) == 1 for s in shardings)

    def _pull_back(self, *operands: jax.Array) -> list[jax.Array]:
        first = len(self._saved_inputs)
        count = first + len(self._residuals)
        inputs = dict(zip(self._saved_inputs, operands, strict=False))
        residuals = iter(self._packing.unpack(operands[first:count]))
        leaves = [next(residuals) if i is None else inputs[i] for i in self._input_of_leaf]
        pullback = jax.tree.unflatten(self._pullback_tree, leaves)
        # torch's cotangents are the conjugates of JAX's.
        gradients = [g.conj() for g in pullback([c.conj() for c in operands[count:]])]
        if not self.on_mesh:
            return gradients
        where = [
            self.avals[i].sharding for i in self.inputs
        ]  # a gradient has the sharding of its input
        return list(map(jax.lax.with_sharding_constraint, gradients, where))

    def of_inputs(self, arrays: Sequence[jax.Array]) -> FlatFunction:
        """The function of `inputs` alone, with all other arrays fixed."""

        def function(*primals: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
            full = list(arrays)
            for i, primal in zip(self.inputs, primals, strict=True):
                full[i] = primal
            return self.function(*full)

        return function


def names_of_cotangents(count: int) -> list[str]:
    """torch's name for the gradients of the outputs."""
    return ["grad_output"] if count == 1 else [f"grad_output[{i}]" for i in range(count)]
