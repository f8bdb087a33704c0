"""From a trace to an executable: the only place that calls XLA's compiler and records each compilation.

The record (`stats.ProgramRecord`) keeps nothing alive. The data for inspecting a program later, its executable and
its trace, is attached to the function that runs it, and the record holds a weak reference. So a program that can no
longer be run is freed.

While a program is traced or compiled, its thread has an open `Phase`. `insight/` reads the phases from another thread
to report what takes so long. JAX's events, which do not name the program, are attributed to the thread's innermost
phase.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import jax
from jax.extend.core import Jaxpr

from ..base import garbage
from ..base.jax_live import LiveTrace, step_of
from ..base.jax_private import CompilerOptions, fast_call, stack, without_lowering
from ..storage.buffer import Origin
from ..storage.placement import without_context_mesh
from . import stats
from .fusion import compiler_options
from .jaxprs import jaxprs
from .site import origin, site_of
from .stats import TraceRecord

# Runs a compiled program: takes flat arrays.
Executable = Callable[..., list[jax.Array]]


class Phase:
    """The step that a thread is performing on a program.

    Attributes:
        step: "trace", "lowering" or "XLA"; "TPU" for waiting for the compiler of another chip; "profile" or
            "checkpoint" for other work that takes long.
        cached: whether the executable came from the persistent cache; None while this is unknown.
        failed: it ended with an error or an interrupt.
    """

    __slots__ = ("cached", "failed", "name", "started", "step")

    def __init__(self, name: str, step: str):
        self.name, self.step = name, step
        self.started = time.perf_counter()
        self.cached: bool | None = None
        self.failed = False


phases: dict[int, list[Phase]] = {}  # by thread: its open phases, the innermost last
on_phase: Callable[[], None] | None = None  # called when a thread opens its first phase
# Called with the record of each program of captured code once it is compiled; must not raise.
on_compiled: Callable[[stats.ProgramRecord], None] | None = None


@contextmanager
def building(name: str, step: str = "trace") -> Iterator[Phase]:
    """Trace or compile a program in the block: as `phase`, and full garbage collections wait."""
    with garbage.collected_later(), phase(name, step) as current:
        yield current


@contextmanager
def phase(name: str, step: str) -> Iterator[Phase]:
    """Report a step of a program, or other work that takes long, in the block, where JAX has no context mesh."""
    thread = threading.get_ident()
    current = Phase(name, step)
    stack = phases.setdefault(thread, [])
    stack.append(current)
    if on_phase is not None and len(stack) == 1:
        on_phase()
    try:
        with without_context_mesh():
            yield current
    except BaseException:
        current.failed = True
        raise
    finally:
        while stack and stack.pop() is not current:  # an interrupt may have left one open
            pass
        if not stack:
            phases.pop(thread, None)


# By thread: the step that comes next for a program of the user's own `jax.jit`, if its compilation continues.
_next_steps: dict[int, Phase] = {}


def on_step_end(name: str, step: str | None) -> None:
    """Note that JAX ended a step of a program outside jaxtorch. `step` is the next one, or None after the last."""
    if step is None:
        _next_steps.pop(threading.get_ident(), None)
        return
    _next_steps[threading.get_ident()] = Phase(name, step)
    if on_phase is not None:
        on_phase()


def outermost_phase() -> Phase | None:
    """The program that some thread is compiling, not the small programs inside its trace.

    JAX reports the end of a step but never its beginning. The thread's stack shows whether the next one has begun.
    """
    for running in list(phases.values()):
        if running:
            return running[0]
    frames = sys._current_frames()
    for thread, coming in list(_next_steps.items()):
        if thread not in frames:
            _next_steps.pop(thread, None)
        elif step_of(frames[thread]) == coming.step:
            return coming
    return None


def current_phase() -> Phase | None:
    """This thread's innermost open phase, if it is working on a program of jaxtorch."""
    stack = phases.get(threading.get_ident())
    return stack[-1] if stack else None


class _Behalf(threading.local):
    """For whom a thread compiles, if not for the code that it runs: the user's line, and the Python frames."""

    caller: Origin | None = None
    frames: object = None


_behalf = _Behalf()


def side_by_side(jobs: Sequence[Callable[[], object]]) -> None:
    """Run jobs that compile, on as many threads as the machine has cores. They count as compiled by the current line.

    Raises:
        Exception: the first that a job raised; jobs that have not begun are dropped.
    """
    if len(jobs) < 2:
        for job in jobs:
            job()
        return
    caller, frames = origin(None), stack()

    def run(job: Callable[[], object]) -> None:
        _behalf.caller, _behalf.frames = caller, frames
        job()

    pool = ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1), "jaxtorch-compile")
    try:
        for result in [pool.submit(run, job) for job in jobs]:
            result.result()
    finally:
        pool.shutdown(cancel_futures=True)


class Handle:
    """The data for inspecting a program: its executable, and what it was compiled from: trace, Python stack, options.

    JAX derives the source lines of a program from the stack at its lowering.
    """

    __slots__ = ("__weakref__", "executable", "options", "stack", "traced")

    def __init__(
        self,
        executable: jax.stages.Compiled,
        traced: jax.stages.Traced | LiveTrace | None,
        stack: object = None,
        options: CompilerOptions | None = None,
    ):
        self.executable, self.traced, self.stack = executable, traced, stack
        self.options = options


_MOST_BYTES = 2**63 - 1


def _check_sizes(program: Jaxpr) -> None:
    """Refuse a program with an array whose size in bytes overflows: XLA would end the process.

    XLA multiplies the sizes in this order, so a later size of zero does not prevent its overflow.

    Raises:
        RuntimeError: with torch's message.
    """
    for jaxpr in jaxprs(program):
        for variables in (jaxpr.invars, *(equation.outvars for equation in jaxpr.eqns)):
            for aval in [v.aval for v in variables]:
                nbytes = getattr(getattr(aval, "dtype", None), "itemsize", 1)
                shape = getattr(aval, "shape", ())
                for n in shape:
                    nbytes *= n
                    if nbytes > _MOST_BYTES:
                        raise RuntimeError(
                            f"Storage size calculation overflowed with sizes={list(shape)}"
                        )


def finish(
    traced: jax.stages.Traced,
    name: str,
    trace_seconds: float,
    avals: Sequence[jax.ShapeDtypeStruct],
    cause: TraceRecord = stats.EAGER,
    part: str = "",
) -> tuple[Executable, stats.ProgramRecord]:
    """Compile a trace; returns its executable and its record."""
    started = time.perf_counter()
    _check_sizes(traced.jaxpr.jaxpr)
    with building(name, "lowering") as current, jax.enable_x64(True):
        lowered = traced.lower()
        middle = time.perf_counter()
        current.step = "XLA"
        options = compiler_options(traced.jaxpr.jaxpr, avals)
        executable = lowered.compile(options)
    done = time.perf_counter()
    call = fast_call(executable)
    if isinstance(call, jax.stages.Compiled):  # it takes no attributes
        call = functools.partial(call)
    frames = _behalf.frames or stack()
    handle = call.program = Handle(executable, without_lowering(traced), frames, options)  # type: ignore[attr-defined]  # JAX's callable takes attributes
    caller = None if cause.site else _behalf.caller or origin(None)
    record = stats.ProgramRecord(
        name,
        trace_seconds + cause.seconds,
        done - middle,
        middle - started,
        cause,
        part,
        cause.site if caller is None else site_of(caller),
        avals,
        persistent_hit=current.cached,
        handle=weakref.ref(handle),
    )
    cause.seconds = 0.0
    stats.compiled.append(record)
    if on_compiled is not None and cause.function.captured:
        on_compiled(record)
    return call, record
