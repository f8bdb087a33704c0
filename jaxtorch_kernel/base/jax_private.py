"""All private hooks of JAX that jaxtorch uses: the table, and the functions through which the code uses them.

`tests/device/test_private_hooks.py` fails with a clear message when a new jax changes one.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval
from jaxlib import xla_client

from .hooks import Hook, Hooks

_OWN_FILES = "compiled programs are kept in JAX's own files, one for each"
_NO_LINES = "views show fewer source lines"

TABLE = {
    "jax._src.source_info_util.current": Hook("gives the Python frames of now", without=_NO_LINES),
    "jax._src.source_info_util._source_info_context": Hook(
        "holds the frames that JAX notes for what it traces", without=_NO_LINES
    ),
    "jax._src.compilation_cache.reset_cache": Hook(
        "lets JAX ask for its persistent cache again", without=_OWN_FILES
    ),
    "jax._src.compilation_cache._cache": Hook("is JAX's persistent cache", without=_OWN_FILES),
    "jax._src.compilation_cache._cache_initialized": Hook(
        "tells JAX that it has a persistent cache", without=_OWN_FILES
    ),
    "jax._src.config.compilation_cache_include_metadata_in_key": Hook(
        "compiles a program with its own source lines in one thread",
        without="a program from the persistent cache may show the lines of another session",
    ),
    "jax._src.config.trace_context": Hook(
        "is what JAX keys its traces by",
        without="a program is used again after JAX's configuration has changed",
    ),
    "jaxlib._hlo.HloModule | jaxlib._jax.HloModule": Hook(
        "prints optimized HLO", without="views show no HLO text"
    ),
    "jax.stages.Compiled:_executable": Hook(
        "is the executable of a program", without="each call takes 0.5 µs more"
    ),
    "jax.stages.Compiled:_params": Hook(
        "holds the trees of a program's arguments", without="each call takes 0.5 µs more"
    ),
    "jax.stages.Traced:_params": Hook(
        "holds the jaxpr of a trace", without="kept traces take more memory"
    ),
    "jax.stages.Traced:_lojax": Hook(
        "holds what a trace was lowered to", without="kept traces take more memory"
    ),
}

HOOKS = Hooks("jax", TABLE)
HOOKS.check()
_current = HOOKS.find("jax._src.source_info_util.current")
_frames = HOOKS.find("jax._src.source_info_util._source_info_context")
_CACHE = [
    f"jax._src.compilation_cache.{name}" for name in ("reset_cache", "_cache", "_cache_initialized")
]


def fast_call(compiled: jax.stages.Compiled) -> Callable[..., Any]:
    """The C++ entry point of a compiled program, which takes flat positional arrays.

    `Compiled.__call__` builds it at the first call and goes through one Python frame at every other (0.5 µs). Where
    a new jax hides it, the public call does the same, slower.
    """
    executable = getattr(compiled, "_executable", None)
    create = getattr(executable, "create_cpp_call", None)
    if create is None:
        return compiled
    parameters = compiled._params
    call = create(parameters)
    return compiled if call is None else call


def stack() -> Any:
    """The Python frames of now, as JAX notes them for what it traces."""
    return None if _current is None else _current().traceback


@contextmanager
def as_if_at(frames: Any) -> Iterator[None]:
    """Record code that is traced or lowered in the block with the frames of `stack`; None keeps the current ones.

    JAX's own manager would rewrite the exceptions that pass through.
    """
    if _frames is None:
        yield
        return
    before = _frames.context
    _frames.context = before.replace(traceback=frames)
    try:
        yield
    finally:
        _frames.context = before


def uncommitted(array: jax.Array) -> jax.Array:
    """The same memory as an array that JAX may place beside others, as it does a literal.

    An array of one device that a function closes over otherwise keeps that function from running over several.
    """
    if len(array.sharding.device_set) > 1 or not array.committed:
        return array
    try:
        return type(array)(array.aval, array.sharding, [array], committed=False)  # type: ignore[call-arg]  # ArrayImpl's, behind `type()`
    except TypeError:  # a new jax's constructor
        return array


def equally_varying(operands: Sequence[Any]) -> list[Any]:
    """The operands, with what is the same on all devices of a `shard_map` marked as varying where another varies.

    JAX asks this of the operands of one equation, and sums the gradients of what it marks over the devices.
    """
    varying = [jax.typeof(x).mat.varying for x in operands]
    every = frozenset().union(*varying)
    if not every:
        return list(operands)
    missing = [tuple(sorted(every - own)) for own in varying]
    return [
        jax.lax.pcast(x, axes, to="varying") if axes else x
        for x, axes in zip(operands, missing, strict=True)
    ]


def aval_like(avals: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """The abstract value of a result that varies over devices as the operands do."""
    result = jax.core.ShapedArray(shape, dtype)
    varying = next((a for a in avals if getattr(a.mat, "varying", None)), None)
    if varying is None:
        return result
    return result.update(
        sharding=varying.sharding.update(spec=jax.sharding.PartitionSpec(*[None] * len(shape))),
        manual_axis_type=varying.mat,
    )


def respect_checkpoints_within(policy: Callable[..., bool]) -> None:
    """Let a `jax.checkpoint` inside of one with `policy` forget what it was written to forget.

    JAX asks the outer policy about everything inside, and the inner one about nothing: a policy that keeps nearly all
    would undo every checkpoint under it. JAX's table of rules gets one that differs under this policy alone: inside,
    the inner policy says what is kept, and the results are kept, from which the code goes on.
    """
    rules = partial_eval.partial_eval_jaxpr_custom_rules
    checkpoint = next(p for p in rules if p.name in ("remat2", "checkpoint"))
    rule = rules[checkpoint]

    def nested(saveable: Any, unknown: Any, instantiated: Any, equation: Any) -> Any:
        if saveable is not policy:
            return rule(saveable, unknown, instantiated, equation)
        own = equation.params["policy"] or jax.checkpoint_policies.nothing_saveable
        known, again, unknown, instantiated, kept = rule(own, unknown, instantiated, equation)
        places = zip(equation.outvars, unknown, instantiated, strict=True)
        outputs = [v if late else core.Var(v.aval) for v, late, made in places if made]
        if again is not None:
            again = again.replace(outvars=outputs)
        return known, again, unknown, unknown, kept

    rules[checkpoint] = nested


def without_lowering(traced: Any) -> Any:
    """The same trace (`jax.stages.Traced`), as a separate object.

    JAX keeps what a trace was lowered to, 1.3 MB for an addition, as long as its jaxpr lives, in caches that know the
    jaxpr by identity. Who keeps a trace to look at it later keeps this one.
    """
    known = getattr(traced, "_params", {}).get("jaxpr")
    if known is None:  # a new jax, or a trace of `LiveTrace`'s
        return traced
    twin = copy.copy(traced)
    twin._params = traced._params | {"jaxpr": core.ClosedJaxpr(known.jaxpr, known.consts)}
    twin._lojax = None
    return twin


def use_program_files(files: Any) -> None:
    """Make JAX's persistent cache read and write its programs there, instead of its own files; None restores JAX's.

    JAX asks for its cache once, and then never again until it is reset.
    """
    if any(HOOKS.find(path, instead=_MISSING) is _MISSING for path in _CACHE):
        return
    from jax._src import compilation_cache

    compilation_cache.reset_cache()
    if files is not None:
        compilation_cache._cache, compilation_cache._cache_initialized = files, True


_MISSING: Any = object()


def hlo_proto(compiled: jax.stages.Compiled) -> bytes | None:
    """The optimized HLO of a program: a serialized `HloModuleProto`."""
    modules = compiled.runtime_executable().hlo_modules()  # type: ignore[union-attr]  # XLA's executable
    return modules[0].as_serialized_hlo_module_proto() if modules else None


class LiveExecutable:
    """An executable that JAX alone holds, with the questions of `jax.stages.Compiled`."""

    def __init__(self, found: Any):
        self._found = found

    def runtime_executable(self) -> Any:
        return self._found

    def memory_analysis(self) -> Any:
        return self._found.get_compiled_memory_stats()

    def cost_analysis(self) -> Any:
        return self._found.cost_analysis()


def newest_executable(name: str) -> tuple[Any, list[jax.ShapeDtypeStruct]] | None:
    """Identifies the executable of a function just compiled by `jax.jit`, and its inputs.

    XLA's client lists what lives, the newest first; an executable itself cannot be referred to weakly.
    """
    wanted = re.sub(r"[^\w.-]", "_", f"jit({name})").rstrip("_")
    for found in jax.devices()[0].client.live_executables()[:4]:  # other threads compile too
        modules = found.hlo_modules()
        if modules and modules[0].name == wanted:
            proto = modules[0].as_serialized_hlo_module_proto()
            shapes = xla_client.XlaComputation(proto).program_shape().parameter_shapes()
            return found.fingerprint, [
                jax.ShapeDtypeStruct(s.dimensions(), s.numpy_dtype()) for s in shapes
            ]
    return None


def find_executable(fingerprint: Any) -> LiveExecutable | None:
    """The executable that `newest_executable` identified, while it is alive."""
    live = jax.devices()[0].client.live_executables()
    found = next((e for e in live if e.fingerprint == fingerprint), None)
    return None if found is None else LiveExecutable(found)


def lowered_jaxpr() -> Any:
    """The `jax.core.ClosedJaxpr` whose lowering JAX tells a listener of its events of; None where it cannot be had.

    The event says a name; the function that records it, in whose frame the jaxpr is, is on the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _LOWERING:
            return frame.f_locals.get("closed_jaxpr")
        frame = frame.f_back
    return None


def step_of(frame: FrameType | None) -> str | None:
    """The step that JAX is running for a program on this stack: "lowering", "XLA", or neither (None)."""
    while frame is not None:
        if frame.f_code.co_name in _STEPS and "jax" in frame.f_code.co_filename:
            return _STEPS[frame.f_code.co_name]
        frame = frame.f_back
    return None


_LOWERING = "_cached_lowering_to_hlo"
_STEPS = {_LOWERING: "lowering", "compile_or_get_cached": "XLA"}


class LiveTrace:
    """The trace of a program that JAX alone holds, with what is asked of a `jax.stages.Traced`.

    Attributes:
        jaxpr: the `jax.core.ClosedJaxpr`.
    """

    def __init__(self, jaxpr: Any, name: str):
        self.jaxpr, self._name = jaxpr, name

    def lower(self) -> jax.stages.Lowered:
        """What XLA was given, made again: without what the user's `jax.jit` says of donation and placement."""

        def again(*arguments: Any) -> Any:
            return jax.core.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *arguments)

        again.__name__ = again.__qualname__ = self._name
        avals = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)
            for a in self.jaxpr.in_avals
        ]
        return jax.jit(again).lower(*avals)


def compile_with_own_lines(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile once more, so that the source lines in the program are those of this lowering.

    JAX finds programs again in memory and, in its persistent cache, under a key without source lines, so that a program
    may carry those of another. The option, which says what XLA does anyway, leads past the former; the metadata in
    the key past the latter, by a public option whose scope for one thread is private.
    """
    path = "jax._src.config.compilation_cache_include_metadata_in_key"
    with HOOKS.find(path, instead=nullcontext)(True):
        return lowered.compile(compiler_options={"xla_embed_ir_in_executable": False})


def hlo_text(proto: bytes) -> str:
    """A serialized `HloModuleProto` as XLA prints it."""
    # The second is that of jax 0.10.1 and older.
    module = HOOKS.find("jaxlib._hlo.HloModule | jaxlib._jax.HloModule")
    return "" if module is None else str(module.from_serialized_hlo_module_proto(proto).to_string())


# What JAX itself keys what it has traced by: its configuration in this thread.
trace_context: Callable[[], Any] = HOOKS.find("jax._src.config.trace_context", instead=lambda: None)
