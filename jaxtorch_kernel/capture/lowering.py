"""The lowered forms of a captured program: jaxpr, StableHLO, and XLA's optimized HLO with cost and memory analysis.

They are for this machine's device, or for a TPU that is not present: libtpu, the TPU compiler, needs no TPU
(`tpu.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

import jax
from jax import export
from jax.extend.core import ClosedJaxpr

from ..base.jax_private import compile_with_own_lines
from ..base.naming import hlo_with_names, name_inputs, stablehlo_of
from ..programs.compiled import CompiledFunction, names_of_cotangents
from .tpu import compile_elsewhere
from .tpu_worker import describe

_TARGET = re.compile(r"(v\d+\w*|tpu\w+):\d+(x\d+)*")


class Lowered:
    """A captured program before compilation. Created by `pure(function).lower(...)` and `jit(function).lower(...)`.

    It has the methods and attributes of `jax.stages.Lowered`. Its arguments are arrays: those of the call, then what
    the code reads by name.

    Args:
        function: a JAX function of arrays.
        avals: shapes and dtypes of its arguments.
        name: the name of the program.
        input_names: of its arguments.
        target: a TPU topology such as "v5e:1x1", or None for this machine's device.
        donated: indices of the arguments whose memory the program may reuse.
    """

    def __init__(
        self,
        function: Callable[..., object],
        avals: Sequence[jax.ShapeDtypeStruct],
        name: str,
        target: str | None = None,
        donated: Sequence[int] = (),
        input_names: Sequence[str] = (),
    ):
        if target is not None and not _TARGET.fullmatch(target):
            raise ValueError(
                f"a target names a TPU and its topology, such as 'v5e:1x1', not {target!r}"
            )
        self.target = target
        # The shardings name devices of this machine, which a program for another machine cannot have.
        self._avals = (
            [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals] if target else list(avals)
        )

        def program(*operands: jax.Array) -> object:
            return function(*operands)

        program.__name__ = program.__qualname__ = name
        if input_names:
            name_inputs(program, input_names)
        self._jitted = jax.jit(program, donate_argnums=tuple(donated))
        with jax.enable_x64(True):
            self._traced = self._jitted.trace(*self._avals)

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as a `jax.core.ClosedJaxpr`."""
        return self._traced.jaxpr

    @cached_property
    def _lowered(self) -> jax.stages.Lowered:
        with jax.enable_x64(True):
            return self._traced.lower(lowering_platforms=("tpu",) if self.target else None)

    def __getattr__(self, name: str) -> object:
        """What `jax.stages.Lowered` has besides: `compiler_ir`, `in_avals`, `out_info`, ..."""
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
            return Executable(**compile_elsewhere(self._serialized(), self.target))
        with jax.enable_x64(True):
            # A program of the cache has the names and lines of the code that was compiled first.
            compiled = compile_with_own_lines(self._lowered)
        return Executable(**describe(compiled, jax.local_devices()[0]), compiled=compiled)

    def _serialized(self) -> bytes:
        # JAX refuses to export custom calls that another version of XLA might lack. Here the version is the same.
        calls = set(re.findall(r"custom_call @([\w.$]+)", self.stablehlo))
        checks = [export.DisabledSafetyCheck.custom_call(name) for name in calls]
        with jax.enable_x64(True):
            exported = export.export(self._jitted, platforms=("tpu",), disabled_checks=checks)(
                *self._avals
            )
            return bytes(exported.serialize())


class Executable:
    """The text, costs and memory use of a compiled program, with the methods and attributes of `jax.stages.Compiled`.

    Attributes:
        hlo: XLA's optimized HLO. Names of modules and `record_function` blocks are in its metadata.
        device: the kind of device that it was compiled for.
    """

    def __init__(
        self,
        hlo: str,
        costs: dict[str, float],
        memory: dict[str, int],
        device: str,
        compiled: jax.stages.Compiled | None = None,
    ):
        self.hlo, self.device = hlo_with_names(hlo), device
        self._costs, self._memory, self._compiled = costs, memory, compiled

    def __getattr__(self, name: str) -> object:
        """What `jax.stages.Compiled` has besides: `input_shardings`, `runtime_executable`, ..."""
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


def forward_of(compiled: CompiledFunction, target: str | None) -> Lowered:
    """The forward program of a captured signature."""

    def forward(*arrays: jax.Array) -> list[jax.Array]:
        outputs, others = compiled.function(*arrays)
        return [*outputs, *others]

    return Lowered(
        forward, compiled.avals, compiled.name, target, compiled.donated, compiled.input_names
    )


def with_gradients_of(compiled: CompiledFunction, target: str | None) -> Lowered:
    """Forward and backward as one program from all inputs and cotangents to the outputs and gradients."""
    if not compiled.inputs:
        raise ValueError(
            "nothing in this call requires a gradient: call lower outside torch.no_grad(), with a tensor or "
            "parameter that requires one"
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
    names = [*compiled.input_names, *names_of_cotangents(len(cotangents))]
    return Lowered(both, [*compiled.avals, *cotangents], compiled.name, target, input_names=names)
