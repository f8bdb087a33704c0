"""The private hooks of JAX that jaxtorch uses: their table, and the functions through which the code uses them.

`tests/device/test_private_hooks_of_jax.py` fails with a clear message when a new jax changes one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from .hooks import Hook, Hooks

CompilerOptions = dict[str, str | bool]  # of `jax.stages.Lowered.compile`

_OWN_FILES = "compiled programs are kept in JAX's own files, one for each"
_ONE_MESH = "code under `jax.set_mesh` may fail: pass shardings with their mesh"
_NO_LINES = "views show fewer source lines"

TABLE = {
    "jax._src.source_info_util.current": Hook(
        "returns the current Python frames", without=_NO_LINES
    ),
    "jax._src.source_info_util._source_info_context": Hook(
        "holds the frames that JAX records for traced code", without=_NO_LINES
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
    "jax._src.config.eager_constant_folding": Hook(
        "decides whether JAX evaluates constant operations while it traces",
        without="captured code that creates a tensor like one over several processes fails at its first call",
    ),
    "jax._src.config.trace_context": Hook(
        "is what JAX keys its traces by",
        without="a program is used again after JAX's configuration has changed",
    ),
    "jax._src.profiler._profile_state": Hook(
        "holds the profiler that is running", without="profiles take more time and memory"
    ),
    "jaxlib._hlo.HloModule | jaxlib._jax.HloModule": Hook(
        "prints optimized HLO", without="views show no HLO text"
    ),
    "jax._src.distributed.global_state": Hook(
        "holds the coordinator of several processes and its key-value store",
        without="a process waits for minutes when another one has died",
    ),
    "jax._src.api_util.InternalFloatingPointError": Hook(
        "is raised for a value that `jax_debug_nans` forbids",
        without="the error does not name the line",
    ),
    "jax._src.core.trace_ctx": Hook("holds the trace that JAX has open"),
    "jax._src.config.device_context": Hook("holds the mesh of `jax.set_mesh`", without=_ONE_MESH),
    "jax._src.config.abstract_mesh_context_manager": Hook(
        "holds the abstract mesh that JAX traces for", without=_ONE_MESH
    ),
    "jax._src.mesh.thread_resources": Hook(
        "holds the mesh of a `with mesh:` block", without="write `with jax.set_mesh(mesh):`"
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
_context = HOOKS.find("jax._src.core.trace_ctx")
_current = HOOKS.find("jax._src.source_info_util.current")
_frames = HOOKS.find("jax._src.source_info_util._source_info_context")
# What a program raises that fails: XLA's error, and JAX's for a value that it was told to check for.
NotFinite: type[Exception] = HOOKS.find(
    "jax._src.api_util.InternalFloatingPointError", instead=FloatingPointError
)
FAILURES = (jax.errors.JaxRuntimeError, NotFinite)
_CACHE = [
    f"jax._src.compilation_cache.{name}" for name in ("reset_cache", "_cache", "_cache_initialized")
]


def fast_call(compiled: jax.stages.Compiled) -> Callable[..., Any]:
    """The C++ entry point of a compiled program, which takes flat positional arrays.

    `Compiled.__call__` builds it at the first call, and runs one Python frame (0.5 µs) at every later call. If a new
    jax lacks it, this returns `compiled` itself, which is slower.
    """
    executable = getattr(compiled, "_executable", None)
    create = getattr(executable, "create_cpp_call", None)
    if create is None:
        return compiled
    parameters = compiled._params
    call = create(parameters)
    return compiled if call is None else call


def unfolded() -> AbstractContextManager[Any]:
    """In this block, traced code keeps operations that depend on no argument instead of evaluating them to constants.

    A value in several processes cannot be a constant of a program. `jax.ensure_compile_time_eval` does the opposite.
    """
    return HOOKS.find("jax._src.config.eager_constant_folding", instead=nullcontext)(False)


def distributed_state() -> Any:
    """JAX's state of the other processes: `client`, `coordinator_address`, `process_id`, `num_processes`."""
    return HOOKS.find("jax._src.distributed.global_state")


def stack() -> Any:
    """The current Python frames, in the form in which JAX stores them with traced operations."""
    return None if _current is None else _current().traceback


@contextmanager
def as_if_at(frames: Any) -> Iterator[None]:
    """Store these frames, which `stack` returned, with what is traced or lowered in the block.

    None stores the actual frames. JAX's own context manager would rewrite exceptions that pass through it.
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


def checks_values() -> bool:
    """Whether JAX checks each result for NaN or infinity."""
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]  # as documented


def open_traces() -> Iterator[object]:
    """The traces that JAX has open in this thread, from the innermost outward; what runs on values comes last."""
    trace = _context.trace
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def is_jaxpr_tracer(value: object) -> bool:
    """Whether operations on a value become equations of a jaxpr as they are, not differentiated or batched first."""
    return isinstance(value, partial_eval.DynamicJaxprTracer)


def uncommitted(array: jax.Array) -> jax.Array:
    """An uncommitted array over the same memory, if it is on one device. JAX may move such an array to others.

    A function cannot run on several devices if it closes over an array that is committed to one of them.
    """
    if len(array.sharding.device_set) > 1 or not array.committed:
        return array
    try:
        return type(array)(array.aval, array.sharding, [array], committed=False)  # type: ignore[call-arg]  # ArrayImpl's constructor
    except TypeError:  # a new jax has another constructor
        return array


def equally_varying(operands: Sequence[Any]) -> list[Any]:
    """The operands, each marked as varying over every mesh axis of a `shard_map` over which one of them varies.

    JAX requires that all operands of one equation vary over the same axes. It sums the gradient of an operand that is
    marked here over the devices.
    """
    varying = [jax.typeof(x).mat.varying for x in operands]
    every = frozenset().union(*varying)
    if not every:
        return list(operands)
    missing = [tuple(sorted(every - axes)) for axes in varying]
    return [
        jax.lax.pcast(x, axes, to="varying") if axes else x
        for x, axes in zip(operands, missing, strict=True)
    ]


def aval_like(avals: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """The aval of a result that varies over the same mesh axes as the operands."""
    result = jax.core.ShapedArray(shape, dtype)
    varying = next((a for a in avals if getattr(a.mat, "varying", None)), None)
    if varying is None:
        return result
    return result.update(
        sharding=varying.sharding.update(spec=jax.sharding.PartitionSpec(*[None] * len(shape))),
        manual_axis_type=varying.mat,
    )


def respect_checkpoints_within(policy: Callable[..., bool]) -> None:
    """Make a `jax.checkpoint` inside one with `policy` follow its own policy.

    JAX applies the outer policy to everything inside and ignores the inner policy. An outer policy that saves nearly
    all values would therefore disable every checkpoint within it. This function replaces JAX's rule for checkpoints.
    Under `policy`, the new rule applies the inner policy inside the inner checkpoint, and saves its results, which the
    code after it needs. Under any other policy, JAX's rule applies.
    """
    rules = partial_eval.partial_eval_jaxpr_custom_rules
    checkpoint = next(p for p in rules if p.name in ("remat2", "checkpoint"))
    rule = rules[checkpoint]

    def nested(saveable: Any, unknown: Any, instantiated: Any, equation: Any) -> Any:
        if saveable is not policy:
            return rule(saveable, unknown, instantiated, equation)
        inner_policy = equation.params["policy"] or jax.checkpoint_policies.nothing_saveable
        known_equation, staged_equation, unknown, instantiated, residuals = rule(
            inner_policy, unknown, instantiated, equation
        )
        results = zip(equation.outvars, unknown, instantiated, strict=True)
        outputs = [
            v if is_unknown else core.Var(v.aval)
            for v, is_unknown, is_instantiated in results
            if is_instantiated
        ]
        if staged_equation is not None:
            staged_equation = staged_equation.replace(outvars=outputs)
        return known_equation, staged_equation, unknown, unknown, residuals

    rules[checkpoint] = nested


def without_lowering(traced: Any) -> Any:
    """The same trace (`jax.stages.Traced`) as a separate object without its lowering.

    JAX caches the lowering of a trace (1.3 MB for an addition) as long as the jaxpr lives, keyed by the jaxpr's
    identity. Code that keeps a trace to show it later keeps this copy, so that the lowering is freed.
    """
    jaxpr = getattr(traced, "_params", {}).get("jaxpr")
    if jaxpr is None:  # a new jax, or a `LiveTrace`
        return traced
    copied = copy.copy(traced)
    copied._params = traced._params | {"jaxpr": core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)}
    copied._lojax = None
    return copied


def use_program_files(files: Any) -> None:
    """Make JAX's persistent cache read and write programs in `files` instead of its own files; None restores those.

    JAX opens its cache once, so the cache must be reset for a change to take effect.
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


def compile_with_own_lines(
    lowered: jax.stages.Lowered, options: CompilerOptions | None = None
) -> jax.stages.Compiled:
    """Compile again, with the options of the first time, so that the source lines are those of this lowering.

    JAX caches programs in memory and in its persistent cache under keys without source lines, so a cached program may
    have the lines of another. The compiler option, which is XLA's default anyway, avoids the programs in memory. The
    metadata in the key avoids those in the persistent cache. That option is public, but setting it for one thread is
    private.
    """
    path = "jax._src.config.compilation_cache_include_metadata_in_key"
    with HOOKS.find(path, instead=nullcontext)(True):
        return lowered.compile(
            compiler_options={**(options or {}), "xla_embed_ir_in_executable": False}
        )


def hlo_text(proto: bytes) -> str:
    """XLA's text of a serialized `HloModuleProto`."""
    # The second name is that of jax 0.10.1 and older.
    module = HOOKS.find("jaxlib._hlo.HloModule | jaxlib._jax.HloModule")
    return "" if module is None else str(module.from_serialized_hlo_module_proto(proto).to_string())


def stop_profiler(folder: str) -> bytes:
    """Stop the profiler that `jax.profiler.start_trace` started in this folder. Returns its events, an `XSpace`.

    `jax.profiler.stop_trace` writes them to files, and converts them to another format, which takes gigabytes.

    Raises:
        RuntimeError: no profiler is running.
    """
    state = HOOKS.find("jax._src.profiler._profile_state")
    if state is None:
        jax.profiler.stop_trace()
        return max(Path(folder).rglob("*.xplane.pb")).read_bytes()
    with state.lock:
        session = state.profile_session
        if session is None:
            raise RuntimeError("no profile started")
        try:
            return bytes(session.stop())
        finally:
            state.reset()


# JAX's configuration in this thread, which is part of the keys of JAX's own caches of traces.
trace_context: Callable[[], Any] = HOOKS.find("jax._src.config.trace_context", instead=lambda: None)
