"""A JAX function over flat arrays, compiled for one signature: forward, forward with residuals, backward.

`jax.vjp` returns the pullback as a pytree whose leaves are the residuals. The forward program returns those leaves
(except inputs, which would be copied); the backward program takes them and the cotangents. No part of the forward runs
twice, and XLA sees each half as a whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ..base.jax_private import respect_checkpoints_within
from . import watching
from .compiling import finish, phase
from .packing import Packing
from .stats import Compiled as Record
from .stats import Trace, trace_here

# arrays -> (differentiable outputs, other outputs)
FlatFunction = Callable[..., tuple[list[Any], list[Any]]]


# What only moves or converts elements is made again in the backward program, from what it is made of: kept, the
# transpose of every weight would be a residual.
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

    call: Callable[..., Any]
    record: Record


def build(
    function: Callable[..., Any],
    avals: Sequence[Any],
    donated: Sequence[int] = (),
    name: str = "jax",
    out: Any = None,
    cause: Trace | None = None,
    part: str = "",
) -> Built:
    """Compile a function of arrays; `out`: placement of its outputs, XLA's choice by default."""

    def program(*operands: Any) -> Any:
        return function(*operands)

    program.__name__ = program.__qualname__ = name
    started = time.perf_counter()
    with phase(name), jax.enable_x64(True):
        jitted = jax.jit(program, donate_argnums=tuple(donated), out_shardings=out)
        traced = jitted.trace(*avals)
    seconds = time.perf_counter() - started
    return Built(*finish(traced, name, seconds, avals, cause or trace_here(name), part))


def _worth_keeping(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name not in _MOVES


respect_checkpoints_within(_worth_keeping)


class Compiled:
    """The programs of one signature, each compiled at its first use.

    Args:
        function: takes one array for each of `avals`.
        avals: shape, dtype and placement of the inputs.
        inputs: those whose gradient may be requested.
        donated: inputs whose memory the forward program without residuals may reuse.
        name: what the program is called in profiles and messages.
        cause: the trace that the programs are recorded under: by default the one that is open now.
    """

    def __init__(
        self,
        function: FlatFunction,
        avals: Sequence[jax.ShapeDtypeStruct],
        inputs: Sequence[int] = (),
        donated: Sequence[int] = (),
        name: str = "jax",
        cause: Trace | None = None,
    ):
        self.function, self.avals, self.name = function, list(avals), name
        self.inputs, self.donated = tuple(inputs), tuple(donated)
        self.forward: Any = None
        self.forward_saving: Any = None
        self.backward: Any = None
        self.cause = cause or trace_here(name)
        self.records: dict[str, Record] = {}  # of the programs, by the part that each is
        self.outputs = 0  # differentiable ones
        self._places: list[int | None] = []  # which input each leaf of the pullback is
        self._given: list[int] = []  # the inputs among them
        self._packing = Packing(())
        self._tree: Any = None
        self._residuals: list[Any] = []
        self._lock = threading.RLock()

    def run_saving(self, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """All outputs, and what the backward program needs."""
        if self.forward_saving is None:
            self.compile_saving()
        watching.launching(self.records["saving"])
        outputs = self.forward_saving(*arrays)
        self.records["saving"].calls += 1
        count = len(outputs) - len(self._residuals)
        return outputs[:count], [*(arrays[i] for i in self._given), *outputs[count:]]

    def pull_back(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """The cotangents of `inputs`."""
        if self.backward is None:
            self.compile_backward(cotangents)
        watching.launching(self.records["backward"])
        self.records["backward"].calls += 1
        return self.backward(*saved, *cotangents)

    # -- compiling --------------------------------------------------------------------------------------------

    def compile(self) -> Any:
        """The forward program, compiled."""
        with self._lock:
            if self.forward is None:
                self.forward = self._build("", self._flat, self.avals, self.donated)
            return self.forward

    def compile_saving(self) -> None:
        """Compile the forward program that keeps the residuals."""
        with self._lock:
            if self.forward_saving is None:
                self.forward_saving = self._build("saving", self._saving, self.avals)

    def compile_backward(self, cotangents: Sequence[Any]) -> None:
        """Compile the backward program, for cotangents of these shapes."""
        with self._lock:
            if self.backward is None:
                avals = [*(self.avals[i] for i in self._given), *self._residuals]
                avals += [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in cotangents]
                self.backward = self._build("backward", self._pull_back, avals)

    def _build(
        self, part: str, function: Any, avals: Sequence[Any], donated: Sequence[int] = ()
    ) -> Any:
        built = build(function, avals, donated, self.name, cause=self.cause, part=part)
        self.records[part] = built.record
        return built.call

    def _flat(self, *arrays: Any) -> list[Any]:
        outputs, others = self.function(*arrays)
        self.outputs = len(outputs)
        return [*outputs, *others]

    def _saving(self, *arrays: Any) -> list[Any]:
        function = self.of_inputs(arrays)
        checkpointed = jax.checkpoint(function, policy=_worth_keeping, prevent_cse=False)
        primals = [arrays[i] for i in self.inputs]
        try:
            outputs, pullback, others = jax.vjp(checkpointed, *primals, has_aux=True)
        except TypeError as error:
            if "reduce_precision" not in str(error):
                raise
            # JAX would round what is kept to its own dtype, and cannot for complex numbers: keep everything.
            outputs, pullback, others = jax.vjp(function, *primals, has_aux=True)
        self.outputs = len(outputs)
        leaves, self._tree = jax.tree.flatten(pullback)
        place = {id(a): i for i, a in enumerate(arrays)}
        self._places = [place.get(id(leaf)) for leaf in leaves]
        self._given = sorted({i for i in self._places if i is not None})
        own = [leaf for leaf, i in zip(leaves, self._places, strict=True) if i is None]
        # Arrays over several devices would be gathered on one to lie behind each other.
        self._packing = Packing(own) if self._one_device() else Packing(own, largest=-1)
        packed = self._packing.pack(own)
        self._residuals = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in packed]
        return [*outputs, *others, *packed]

    def _one_device(self) -> bool:
        placements = [getattr(aval, "sharding", None) for aval in self.avals]
        return all(p is None or len(p.device_set) == 1 for p in placements)

    def _pull_back(self, *operands: Any) -> list[Any]:
        given, count = len(self._given), len(self._given) + len(self._residuals)
        array_of = dict(zip(self._given, operands, strict=False))
        own = iter(self._packing.unpack(operands[given:count]))
        leaves = [next(own) if place is None else array_of[place] for place in self._places]
        pullback = jax.tree.unflatten(self._tree, leaves)
        # torch's cotangents are the conjugates of JAX's.
        return [g.conj() for g in pullback([c.conj() for c in operands[count:]])]

    def of_inputs(self, arrays: Sequence[Any]) -> Callable[..., tuple[list[Any], list[Any]]]:
        """The function of `inputs` alone, the other arrays held."""

        def function(*primals: Any) -> tuple[list[Any], list[Any]]:
            full = list(arrays)
            for i, primal in zip(self.inputs, primals, strict=True):
                full[i] = primal
            return self.function(*full)

        return function
