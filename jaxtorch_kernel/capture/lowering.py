"""The lowered forms of a captured program: jaxpr, StableHLO, and XLA's optimized HLO with cost and memory analysis.

They are for this machine's device, or for a TPU that is not present: libtpu, the TPU compiler, needs no TPU
(`tpu.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
from jax import export
from jax.extend.core import ClosedJaxpr
from jax.sharding import NamedSharding
from jax.tree_util import PyTreeDef

from ..base.jax_private import compile_with_own_lines
from ..base.naming import distinct, hlo_with_names, name_inputs, stablehlo_of
from ..programs.compiled import CompiledFunction, names_of_cotangents
from .dependencies.labels import Role
from .layouts import Layout, check_meshes, check_target
from .lowered_call import LoweredCall
from .rejected import compiling, lowering_for
from .tpu import Compiler, Request, shared
from .tpu_worker import Description, Protos, describe, protos


class Input(NamedTuple):
    """An input of a program: its name, and its role in the training of a model ("cotangent": a given gradient)."""

    name: str
    role: Role | Literal["cotangent"]


class Lowered:
    """A captured program before compilation. Created by `pure(function).lower(...)` and `jit(function).lower(...)`.

    It has the methods and attributes of `jax.stages.Lowered`. The inputs of the program (`inputs`, `avals`, `in_avals`)
    are arrays: those of the call, then what the code reads by name. `in_tree`, `out_tree` and `out_info` are those of
    the call.

    Args:
        function: a JAX function of arrays.
        avals: shapes and dtypes of its arguments.
        name: the name of the program.
        inputs: its arguments.
        target: a TPU topology such as "v5e:1x1", or None for this machine's device.
        donated: indices of the arguments whose memory the program may reuse.
        shardings: of the arguments over the chips of the target; by default all are on its first chip.
        out: the shardings of the results; None where the compiler chooses.
        call: the call that it is lowered for; None if it is not the program of one call.
    """

    def __init__(
        self,
        function: Callable[..., object],
        avals: Sequence[jax.ShapeDtypeStruct],
        name: str,
        target: str | None = None,
        donated: Sequence[int] = (),
        inputs: Sequence[Input] = (),
        shardings: Sequence[NamedSharding] = (),
        out: Sequence[NamedSharding | None] | None = None,
        call: LoweredCall | None = None,
    ):
        self._call = call
        if target is not None:
            check_target(target)
        self.target = target
        names = distinct([i.name for i in inputs])
        self.inputs = tuple(Input(n, i.role) for n, i in zip(names, inputs, strict=True))
        self._mesh = dict(shardings[0].mesh.shape) if shardings else None
        self._donated = list(donated)
        # The shardings name devices of this machine, which a program for another machine cannot have.
        self._avals = (
            [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals] if target else list(avals)
        )
        if shardings:
            both = zip(self._avals, shardings, strict=True)
            self._avals = [aval.update(sharding=sharding) for aval, sharding in both]

        def program(*operands: jax.Array) -> object:
            return function(*operands)

        program.__name__ = program.__qualname__ = name
        if inputs:
            name_inputs(program, names)
        self._jitted = jax.jit(program, donate_argnums=tuple(donated), out_shardings=out)
        with jax.enable_x64(True):
            self._traced = self._jitted.trace(*self._avals)
        if target is not None:
            check_meshes(self.jaxpr, target)

    @property
    def avals(self) -> Sequence[jax.ShapeDtypeStruct]:
        """The shapes, dtypes and, for several chips, the shardings of its inputs."""
        return self._avals

    @property
    def mesh(self) -> dict[str, int]:
        """The axes of its mesh; empty for a program of one device."""
        return dict(self._mesh or {})

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as a `jax.core.ClosedJaxpr`."""
        return self._traced.jaxpr

    @cached_property
    def _lowered(self) -> jax.stages.Lowered:
        with jax.enable_x64(True), lowering_for(self.target, self.jaxpr):
            return self._traced.lower(lowering_platforms=("tpu",) if self.target else None)

    @property
    def in_tree(self) -> PyTreeDef:
        """The structure of the arguments, by position and by name."""
        return (self._call or self._lowered).in_tree

    @property
    def out_tree(self) -> PyTreeDef:
        """The structure of the result."""
        return (self._call or self._lowered).out_tree

    @property
    def out_info(self) -> Any:
        """The result, with a shape and a dtype for each tensor."""
        return (self._call or self._lowered).out_info

    def __getattr__(self, name: str) -> object:
        """Other attributes of `jax.stages.Lowered`: `compiler_ir`, `in_avals`, ..."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value: object = getattr(self._lowered, name)
        return value

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The program as text: its StableHLO, which is passed to XLA, or its HLO (`dialect="hlo"`).

        Args:
            debug_info: whether StableHLO has the location of each operation.
        """
        if dialect in (None, "stablehlo"):
            return stablehlo_of(self._lowered, debug_info)
        return str(self._lowered.as_text(dialect, debug_info=debug_info))

    def cost_analysis(self) -> dict[str, float]:
        """XLA's estimates for the program as it is before optimization: "flops", "bytes accessed", ..."""
        return {name: float(value) for name, value in (self._lowered.cost_analysis() or {}).items()}

    @property
    def stablehlo(self) -> str:
        """The StableHLO that is passed to XLA, as text."""
        return self.as_text()

    def compile(self) -> Executable:
        """Compile the program with XLA.

        Raises:
            CompileError: if the target's compiler rejects the program or is not installed.
        """
        if self.target is not None:
            return self.compiled_by(shared, self._request())
        with jax.enable_x64(True):
            # A program of the cache has the names and lines of the code that was compiled first.
            compiled = compile_with_own_lines(self._lowered)
        figures = describe(compiled, jax.local_devices()[0])
        return Executable(
            figures,
            protos(compiled),
            self.inputs,
            compiled=compiled,
            jaxpr=self.jaxpr,
            call=self._call,
        )

    def compiled_by(self, compiler: Compiler, request: Request) -> Executable:
        """The program compiled for its target.

        Args:
            request: this program's `_request()`.
        """
        with compiling(self.jaxpr):
            figures, serialized = compiler.compile(request)
        return Executable(
            figures,
            serialized,
            self.inputs,
            self.target,
            mesh=self._mesh,
            jaxpr=self.jaxpr,
            call=self._call,
        )

    def _request(self) -> Request:
        assert self.target is not None
        names = tuple(one.name for one in self.inputs)
        return Request(self._serialized(), self.target, self._donated, self._mesh, names)

    def _serialized(self) -> bytes:
        # JAX refuses to export custom calls that another version of XLA might lack. Here the version is the same.
        calls = set(re.findall(r"custom_call @([\w.$]+)", self.stablehlo))
        checks = [export.DisabledSafetyCheck.custom_call(name) for name in calls]
        with jax.enable_x64(True), lowering_for(self.target, self.jaxpr):
            exported = export.export(self._jitted, platforms=("tpu",), disabled_checks=checks)(
                *self._avals
            )
            return bytes(exported.serialize())


class Executable:
    """The text, costs and memory use of a compiled program, with the methods and attributes of `jax.stages.Compiled`.

    It can be called where it is compiled for this machine's device: it calls the captured function, whose programs are
    compiled at their first call, with arguments of the structure, shapes and dtypes that it was lowered for.

    Attributes:
        hlo: XLA's optimized HLO. Names of modules and `record_function` blocks are in its metadata.
        hlo_proto: the same as a serialized `HloModuleProto`.
        buffers: the layout of its memory, a serialized `BufferAssignmentProto`; empty where the compiler reports none.
        device: the kind of device that it was compiled for.
        inputs: its inputs, in order. The compiler may have removed some.
        target: the TPU topology that it was compiled for; None for this machine's device.
        mesh: the axes of its mesh; empty for a program of one device.
        jaxpr: what was traced; None if unknown.
        call: the call that it is compiled for; None if it is not the program of one call.
    """

    def __init__(
        self,
        figures: Description,
        serialized: Protos,
        inputs: Sequence[Input] = (),
        target: str | None = None,
        compiled: jax.stages.Compiled | None = None,
        mesh: Mapping[str, int] | None = None,
        jaxpr: ClosedJaxpr | None = None,
        call: LoweredCall | None = None,
    ):
        self._call = call
        self.hlo, self.device = hlo_with_names(figures["hlo"]), figures["device"]
        self.hlo_proto, self.buffers = serialized
        self.inputs, self.target, self.mesh = tuple(inputs), target, dict(mesh or {})
        self.jaxpr = jaxpr
        self._costs, self._memory = figures["costs"], figures["memory"]
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that was lowered, as `jax.stages.Compiled` is called.

        Raises:
            TypeError: the arguments differ from those that it was lowered for, or it cannot run here.
        """
        if self.target is not None:
            raise TypeError(
                f"a program for {self.target} does not run on this machine: call the function itself, or lower it "
                "without target="
            )
        if self._call is None:
            raise TypeError(
                "a program of forward and backward is only for analysis: call the function, then backward()"
            )
        return self._call(*args, **kwargs)

    @property
    def in_tree(self) -> PyTreeDef:
        """The structure of the arguments, by position and by name."""
        return self._stage().in_tree

    @property
    def out_tree(self) -> PyTreeDef:
        """The structure of the result."""
        return self._stage().out_tree

    @property
    def out_info(self) -> Any:
        """The result, with a shape and a dtype for each tensor."""
        return self._stage().out_info

    def _stage(self) -> LoweredCall | jax.stages.Compiled:
        stage = self._call or self._compiled
        if stage is None:
            raise AttributeError(f"a program for {self.device} has no trees on this machine")
        return stage

    def __getattr__(self, name: str) -> object:
        """Other attributes of `jax.stages.Compiled`: `input_shardings`, `runtime_executable`, ..."""
        if name.startswith("_") or self._compiled is None:
            raise AttributeError(
                f"a program for {vars(self).get('device')} has no attribute {name!r} on this machine"
            )
        value: object = getattr(self._compiled, name)
        return value

    def as_text(self) -> str:
        """XLA's optimized HLO: `hlo`."""
        return self.hlo

    def cost_analysis(self) -> dict[str, float]:
        """XLA's own estimates: "flops", "bytes accessed", ... The body of a loop is counted once."""
        return dict(self._costs)

    def memory_analysis(self) -> MemoryAnalysis:
        """Sizes in bytes: of arguments, outputs, temporaries and code."""
        return MemoryAnalysis(self._memory)


class MemoryAnalysis(dict[str, int]):
    """Sizes in bytes by name. The names are attributes too, as those of JAX's `memory_analysis()` are."""

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no such size: {name!r}; there are {', '.join(self)}") from None


def forward_of(
    compiled: CompiledFunction,
    target: str | None,
    layout: Layout | None = None,
    roles: Sequence[Role] = (),
    call: LoweredCall | None = None,
) -> Lowered:
    """The forward program of a captured signature."""

    def forward(*arrays: jax.Array) -> list[jax.Array]:
        outputs, others = compiled.function(*arrays)
        return [*outputs, *others]

    names = compiled.input_names
    placed = layout.of_inputs(names, compiled.avals) if layout is not None else []
    out = layout.of_results(placed) if layout is not None else None
    avals, name, donated = compiled.avals, compiled.name, compiled.donated
    inputs = list(map(Input, names, roles))
    return Lowered(forward, avals, name, target, donated, inputs, placed, out, call)


def with_gradients_of(
    compiled: CompiledFunction,
    target: str | None,
    layout: Layout | None = None,
    roles: Sequence[Role] = (),
) -> Lowered:
    """Forward and backward as one program from all inputs and cotangents to the outputs and gradients."""
    if not compiled.inputs:
        raise ValueError(
            "this call has no gradients. Call lower outside torch.no_grad(), pass a tensor or parameter that requires "
            "a gradient, and return something other than the arguments or views of them"
        )
    count = len(compiled.avals)

    def both(*operands: jax.Array) -> tuple[list[jax.Array], Sequence[jax.Array]]:
        arrays, cotangents = operands[:count], operands[count:]
        primals = [arrays[i] for i in compiled.inputs]
        outputs, pullback, others = jax.vjp(compiled.of_inputs(arrays), *primals, has_aux=True)
        return [*outputs, *others], pullback(list(cotangents))

    with jax.enable_x64(True):
        outputs, _ = jax.eval_shape(compiled.function, *compiled.avals)
    cotangents = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs]
    inputs = list(map(Input, compiled.input_names, roles))
    inputs += [Input(name, "cotangent") for name in names_of_cotangents(len(cotangents))]
    avals = [*compiled.avals, *cotangents]
    placed = layout.of_inputs([i.name for i in inputs], avals) if layout is not None else []
    return Lowered(both, avals, compiled.name, target, inputs=inputs, shardings=placed)
