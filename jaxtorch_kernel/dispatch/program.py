"""A program: the JAX function of one call, which XLA compiles once.

An `Operation` turns a call into a key, and builds a `Program` for each key. A Program is a JAX function of arrays,

    (random key, buffers..., starts of the views, numbers) -> (results and written buffers..., next random key)

that reads the views, runs the lowering, casts its results and writes views back. Inside a trace the same function is
inlined, uncompiled, so everything that works eagerly can be captured. The compiled form mostly takes blocks of random
bits in place of the key (`noise.py`).

The results of a Program are fixed when it is built. torch's Meta kernel determines their sizes, strides and dtypes and
raises torch's own errors for bad input; the lowering must agree on the sizes.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Sharding, SingleDeviceSharding

from ..base.jax_private import is_jaxpr_tracer, unfolded
from ..base.naming import RANDOM_KEY, name_inputs
from ..lowerings.draws import Draws, draws_from_key
from ..lowerings.promote import convert
from ..lowerings.registry import Lowering
from ..programs import program_cache
from ..programs.compiling import building, side_by_side
from ..programs.rng import advanced
from ..storage import in_flight
from ..storage.buffer import Spec, spec_of
from ..storage.dtypes import to_numpy, to_torch
from ..storage.layout import contiguous_strides, memory_order
from .copies import MOST_WRITTEN, Copies, copies_of
from .executable import Executable, Run
from .filling import Constant
from .noise import Noise, noise_of
from .operands import Inputs, Operand, Operands
from .results import Fresh, Results, Structure, Written, flatten
from .template import Template

_MOST_COPIED = 8  # constants for which the equations of one program are kept


class Program:
    """One call, as a JAX function and compiled.

    Attributes:
        template: the arguments of the lowering.
        operands: what the program takes.
        results: the new tensors that it makes.
        targets: the first tensor of each buffer that it writes.
        new_specs: the specs of those buffers after a run.
        executable: the compiled function.
        quick: the hot paths may call it: it is compiled, writes nothing, draws nothing, and needs no check.
        simple: it will be quick once it is compiled.
        plain: it is simple, and takes neither starts nor numbers.
        only: the result of a simple program that has one, which is contiguous.
        deferrable: its calls may be recorded instead of run (`deferred/`): it runs on one device, without effects.
        recordable: the hot paths may record it: it is deferrable, draws nothing, and needs no check.
        constant: its result, if the program only fills.
        copies: what it copies, if it does nothing else.
        noise: the random bits that the compiled program takes; None if it takes a key or draws nothing.
        computed: the dtypes that results have before they are cast to those of `out=`, if those differ.
        mixes: an element that it writes may depend on other elements of the same buffer.
        in_order: of lists whose tensors share memory that is written, for each position the tensors that it writes.
            Each position reads what those before it wrote, as on the CPU.
        origin: recorded in the buffers that it writes.
        nbytes: its estimated size (`programs/program_cache.py`).
        round: when it was last set aside (`programs/program_cache.py`).
    """

    def __init__(
        self,
        name: str,
        lowering: Lowering,
        template: Template,
        operands: Operands,
        metas: object,
        structure: Structure,
        precision: str | None,
        mixes: bool = True,
        computed: Sequence[torch.dtype] = (),
        in_order: Sequence[Sequence[int]] = (),
    ):
        self.name = name
        self.lowering = lowering
        self.template = template
        self.operands = operands
        self.mixes = mixes or operands.shares()
        self.computed = tuple(map(to_numpy, computed))
        self.in_order = in_order if operands.shares() else ()
        self.results = Results([], structure)
        self.targets = operands.targets()
        self.new_specs: list[Spec] = []
        self.quick = False
        self.plain = False
        self.only: Fresh = None  # type: ignore[assignment]  # set with `simple`
        self.simple = self.deferrable = self.recordable = False
        self.constant: Constant | None = None
        self.copies: Copies | None = None
        self.origin = Written(name)
        self.nbytes, self.round = program_cache.TRACED_BYTES, 0
        self.noise: Noise | None = None
        self._precision = precision
        # By the bytes of its constants: the call as a function whose equations a trace copies.
        self._copied: dict[tuple[bytes, ...], Run] = {}
        self._compiling = threading.RLock()
        self._metas = None if metas is None else flatten(metas)
        self.executable = self._traced()

    # -- the JAX function ------------------------------------------------------------------------------------------

    def function(self, *operands: Operand, mixes: bool = False) -> tuple[jax.Array, ...]:
        """The whole call as a function of arrays. `mixes`: as the attribute, for another reason."""
        if not self.lowering.random:
            return self._outputs(None, operands, mixes)
        key = jnp.asarray(operands[0])
        return (*self._outputs(draws_from_key(key), operands[1:], mixes), advanced(key))

    def inner_function(self, *operands: Operand) -> tuple[jax.Array, ...]:
        """As `function`, inside a larger program, where one operand may have been computed from another."""
        outputs = self.function(*operands, mixes=len(self.operands.unique) > 1)
        if not (self.lowering.modeled and self.operands.on_mesh):
            return outputs
        # A tensor that the trace computed is recorded as replicated, but XLA chooses its sharding.
        like = self.operands.shardings()
        known = {shape: s for shape, s in like.items() if not s.is_fully_replicated}
        return (*map(functools.partial(_like_model, known, None), outputs),)

    def in_trace(
        self, operands: Sequence[Operand], constants: Sequence[np.ndarray]
    ) -> Sequence[jax.Array]:
        """As `inner_function`, in an open trace.

        The layers of a model make the same calls again. From the second one on, JAX copies the equations of the call
        instead of running the lowering, which takes ten times as long.

        Args:
            operands: tracers.
            constants: the operands after them, whose values are known: starts of views, and numbers.
        """
        if all(map(is_jaxpr_tracer, operands)):
            key = tuple([constant.tobytes() for constant in constants])
            copied = self._copied.get(key)
            if copied is not None:
                return copied(*operands)
            if len(self._copied) < _MOST_COPIED:
                self._copied[key] = jax.jit(
                    lambda *operands: self.inner_function(*operands, *constants), inline=True
                )
        return self.inner_function(*operands, *constants)

    def _from_blocks(self, *operands: Operand) -> tuple[jax.Array, ...]:
        """As `function`, with blocks of random bits in place of the key, and without a next key."""
        assert self.noise is not None
        count = len(self.noise.avals)
        return self._outputs(self.noise.draws(operands[:count]), operands[count:])

    def _outputs(
        self, draws: Draws | None, operands: Sequence[Operand], mixes: bool = False
    ) -> tuple[jax.Array, ...]:
        inputs = self.operands.read(operands)
        if self.in_order:
            return self._one_by_one(inputs)
        arguments = self.template.fill(inputs.arrays.__getitem__, inputs.numbers)
        if draws is not None:
            arguments.insert(0, draws)
        returned = self._lowered(arguments)
        values = list(returned) if isinstance(returned, list | tuple) else [returned]
        # New results come first, then the new values of what is written, as in the schema.
        written: list[Any] = []
        if self.operands.written:
            leaves = flatten(values)
            split = len(leaves) - len(self.operands.written)
            values, written = leaves[:split], leaves[split:]
        if self.computed:
            written = [convert(v, t) for v, t in zip(written, self.computed, strict=True)]
        arrays = self.operands.write(inputs, written, separately=mixes or self.mixes)
        return tuple(self._fresh(values) + arrays)

    def _one_by_one(self, inputs: Inputs) -> tuple[jax.Array, ...]:
        """The written buffers of lists, one position after another."""
        array = functools.partial(self.operands.read_one, inputs)
        for position, written in enumerate(self.in_order):
            arguments = self.template.at(position).fill(array, inputs.numbers)
            values = flatten(self._lowered(arguments))
            # Parameters come first in the schema, and are written last by the CPU (after gradients and states).
            for i, value in reversed([*zip(written, values, strict=True)]):
                self.operands.write_one(inputs, i, value, separately=True)
        return tuple(self.operands.written_arrays(inputs))

    def _lowered(self, arguments: list[Any]) -> Any:
        if self._precision is None:
            return self.lowering.function(*arguments)
        with jax.default_matmul_precision(self._precision):
            return self.lowering.function(*arguments)

    def _fresh(self, values: list[Any]) -> list[jax.Array]:
        """The new results in memory order; records their layout in `results` when it is first called."""
        leaves: list[Fresh | None] = []
        outputs = []
        for i, value in enumerate(flatten(values)):
            if value is None:
                leaves.append(None)
                continue
            meta = self._metas[i] if self._metas is not None and i < len(self._metas) else None
            leaf, value = self._laid_out(jnp.asarray(value), meta)
            leaves.append(leaf)
            outputs.append(value)
        if not self.results.leaves:
            self.results.leaves = leaves
        return outputs

    def _laid_out(self, value: jax.Array, meta: object) -> tuple[Fresh, jax.Array]:
        """One result as torch lays it out: the tensor to make, and its array in memory order."""
        size = tuple(value.shape)
        stride: tuple[int, ...] | None = None
        if isinstance(meta, torch.Tensor):
            if tuple(meta.shape) != size:
                raise RuntimeError(
                    f"the lowering of aten::{self.name} returned a result of shape {size}, but torch expects "
                    f"{tuple(meta.shape)}. This is a bug in jaxtorch: please report it. "
                    "Calling `.cpu()` on the inputs works around it."
                )
            dtype = meta.dtype
            if meta.stride() != contiguous_strides(size):
                stride = meta.stride()
        else:
            dtype = to_torch(value.dtype)
        value = convert(value, to_numpy(dtype))
        order = memory_order(size, stride) if stride is not None else None
        if order is None:
            stride = None
        else:
            value = value.transpose(order)
        return Fresh(size, dtype, stride, None, self.name), value

    # -- tracing and compiling -------------------------------------------------------------------------------------

    def _traced(self) -> Executable:
        """Trace once. This finds the results, and every error of the lowering before anything is cached."""
        started = time.perf_counter()
        operands = self.operands
        function: Run = self.function
        if self.lowering.random:
            self.noise = self._noise()
            if self.noise is not None:
                operands.leading, function = self.noise.avals, self._from_blocks
        if operands.on_mesh:
            function = self._keeping_shardings(function)
        jitted = jax.jit(
            _named(function, self.name, self.input_names(inner=False)),
            donate_argnums=operands.donated(),
            # A factory has no operands that determine the sharding of its result.
            out_shardings=None if operands.specs else operands.sharding,
        )
        avals = operands.avals()
        # `unfolded`: this may happen within a trace of captured code.
        with building(self.name), jax.enable_x64(True), unfolded():
            traced = jitted.trace(*avals)
        seconds = time.perf_counter() - started
        outs = list(traced.out_info)
        if self.takes_key:
            outs.pop()  # the next key
        specs = iter([spec_of(np.dtype(o.dtype), tuple(o.shape), operands.sharding) for o in outs])
        for leaf in self.results.leaves:
            if leaf is not None:
                leaf.spec = next(specs)
        self.new_specs = list(specs)
        self.deferrable = not traced.jaxpr.effects and all(
            isinstance(where, SingleDeviceSharding) and where == operands.sharding
            for where in (operands.sharding, *(spec.placement for spec in operands.specs))
        )
        if self.deferrable and sum(spec.nbytes for spec in self.new_specs) <= MOST_WRITTEN:
            self.copies = copies_of(traced.jaxpr)
        return Executable(
            self.name, traced, seconds, avals, counted_by_caller=bool(operands.written)
        )

    def _keeping_shardings(self, function: Run) -> Run:
        """The function, with constraints on the results whose sharding XLA must not choose.

        Written tensors keep their sharding. A result that only takes the size of its input (`zeros_like`) gets the
        input's sharding: XLA would put it on one device, or replicate it. One of another size (`new_zeros`) is on one
        device until it is written, as torch does for gradients; its sharding is chosen then. One that takes a number
        (`new_full`) is replicated, because the number is.
        """
        count = len(self.targets)
        modeled = self.lowering.modeled
        like = self.operands.shardings() if modeled or self.lowering.random else {}
        other = self.operands.sharding if modeled and self.operands.kinds else None

        def keeping(*operands: Operand) -> tuple[jax.Array, ...]:
            outputs = list(function(*operands))
            end = len(outputs) - self.takes_key
            first = end - count
            outputs[:first] = [_like_model(like, other, output) for output in outputs[:first]]
            outputs[first:end] = self.operands.keep_shardings(outputs[first:end])
            return tuple(outputs)

        return keeping

    def _set_shardings(self, compiled: jax.stages.Compiled) -> None:
        """Set the specs of the results to the shardings that XLA chose."""
        shardings = iter(jax.tree.leaves(compiled.output_shardings))
        leaves = [leaf for leaf in self.results.leaves if leaf is not None]
        for leaf in leaves:
            leaf.spec = spec_of(leaf.spec.dtype, leaf.spec.shape, next(shardings))
        self.new_specs = [spec_of(s.dtype, s.shape, next(shardings)) for s in self.new_specs]

    def _noise(self) -> Noise | None:
        """The random bits that the program can take as operands instead of computing them."""
        operands = self.operands

        def run(draws: Draws) -> None:
            avals = operands.avals()[len(operands.leading) :]
            jax.eval_shape(lambda *arrays: self._outputs(draws, arrays), *avals)

        with building(self.name), jax.enable_x64(True):
            return noise_of(run, operands.sharding)

    def allow_hot_paths(self, checks_numbers: bool) -> None:
        """Let the hot paths call the program, if it needs no random key and no wait.

        Args:
            checks_numbers: whether numbers are checked before it. The hot paths run numbers that were checked, but
                cannot record them: there is no operand by which they would know them.
        """
        operands = self.operands
        waits = operands.moved or (operands.on_mesh and in_flight.bounded(operands.sharding))
        if waits or self.lowering.random:
            return
        self.recordable = self.deferrable and not (checks_numbers and operands.number_count)
        if operands.written:
            return
        self.simple = True
        self.plain = not (operands.views or operands.number_kinds)
        only = self.results.only()
        if only is not None:
            self.only = only

    def result_specs(self) -> list[Spec]:
        """The specs of the results: new ones, then written ones."""
        fresh = [leaf.spec for leaf in self.results.leaves if leaf is not None]
        return [*fresh, *self.new_specs]

    @functools.cached_property
    def inlined(self) -> Run:
        """The call as a function to use inside a larger program. It is traced and lowered once for all its uses."""
        return jax.jit(_named(self.inner_function, self.name, self.input_names(inner=True)))

    def input_names(self, inner: bool) -> list[str]:
        """The names of the inputs for views, of the compiled program or of `inner_function`."""
        leading = [RANDOM_KEY] if self.lowering.random else []
        if self.noise is not None and not inner:
            leading = [f"random_bits[{i}]" for i in range(len(self.noise.avals))]
        return [*leading, *self.operands.names(self.template)]

    @property
    def takes_key(self) -> bool:
        """Whether the compiled program takes a random key, and returns the next one."""
        return self.lowering.random and self.noise is None

    def compiled(self) -> Run:
        """The object that runs the program. The first call outside a trace compiles it."""
        with self._compiling:
            if self.executable.call is None:
                compiled = self.executable.compile()
                program_cache.count_executable(self, compiled)
                if self.operands.on_mesh:
                    self._set_shardings(compiled)
                self.quick = self.simple
            assert self.executable.call is not None
            return self.executable.call

    def needs_compilation(self) -> bool:
        """Whether the next call compiles: it is not compiled, and there is no way to run without."""
        if self.executable.call is not None or self.constant is not None:
            return False
        return self.copies is None or not self.copies.are_left()

    def ready(self) -> Run:
        """What runs the program now. It may be compiled, or called some more times without."""
        if self.executable.call is not None:
            return self.executable.call
        if self.copies is not None and self.copies.are_left():
            return self.copies.run
        return self.compiled()


def compile_all(programs: Iterable[Program]) -> None:
    """Compile those that are not compiled yet, side by side.

    Raises:
        Whatever the compiler raises for one of them.
    """
    missing = dict.fromkeys(p for p in programs if p.executable.call is None)
    side_by_side([p.compiled for p in missing])


def _like_model(
    like: Mapping[tuple[int, ...], Sharding], other: Sharding | None, array: jax.Array
) -> jax.Array:
    """The array, constrained to the sharding for its shape; otherwise to `other`; if None, XLA chooses."""
    where = like.get(array.shape, other)
    return array if where is None else jax.lax.with_sharding_constraint(array, where)


def _named(function: Run, name: str, input_names: Sequence[str]) -> Run:
    def program(*operands: jax.Array) -> Sequence[jax.Array]:
        return function(*operands)

    program.__name__ = program.__qualname__ = name
    name_inputs(program, input_names)
    return program
