"""From a trace to an executable: the only place that calls XLA's compiler and records each compilation.

The record (`stats.Compiled`) keeps nothing alive. The data for inspecting a program later, its executable and its
trace, is attached to the function that runs it, and the record holds a weak reference: a program that can no longer be
run is freed.

While a program is traced or compiled, its thread has an open `Phase`. `insight/` reads the phases from another thread
to report what takes so long. JAX's events, which do not name the program, are attributed to the thread's innermost
phase.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from ..base.jax_private import fast_call, stack, step_of, without_lowering
from . import stats
from .site import origin, site_of
from .stats import Trace


class Phase:
    """The step that a thread is performing on a program.

    Attributes:
        step: "trace", "lowering" or "XLA".
        found: whether the persistent cache had it; None while this is unknown.
    """

    __slots__ = ("found", "name", "started", "step")

    def __init__(self, name: str, step: str):
        self.name, self.step = name, step
        self.started = time.perf_counter()
        self.found: bool | None = None


phases: dict[int, list[Phase]] = {}  # thread -> those that are open, the innermost last
opened: Callable[[], None] | None = None  # is called where a thread opens its first


@contextmanager
def phase(name: str, step: str = "trace") -> Iterator[Phase]:
    """Say for the length of a block that a program is traced or compiled."""
    thread = threading.get_ident()
    own = Phase(name, step)
    stack = phases.setdefault(thread, [])
    stack.append(own)
    if opened is not None and len(stack) == 1:
        opened()
    try:
        yield own
    finally:
        while stack and stack.pop() is not own:  # an interrupt may have left one open
            pass
        if not stack:
            phases.pop(thread, None)


# thread -> the step that a program of the user's own `jax.jit` comes to there, if it goes on
_heard: dict[int, Phase] = {}


def hear(name: str, step: str | None) -> None:
    """JAX reported the end of a step of a program outside jaxtorch. `step` is the next one, None after the last."""
    if step is None:
        _heard.pop(threading.get_ident(), None)
        return
    _heard[threading.get_ident()] = Phase(name, step)
    if opened is not None:
        opened()


def outermost() -> Phase | None:
    """The outermost program that a thread is compiling, not the small programs inside its trace.

    JAX reports the end of a step but never its beginning, which is detected on the thread's stack.
    """
    for running in list(phases.values()):
        if running:
            return running[0]
    frames = sys._current_frames()
    for thread, own in list(_heard.items()):
        if thread not in frames:
            _heard.pop(thread, None)
        elif step_of(frames[thread]) == own.step:
            return own
    return None


def here() -> Phase | None:
    """The current phase of this thread in a program of jaxtorch, if any."""
    stack = phases.get(threading.get_ident())
    return stack[-1] if stack else None


class Handle:
    """The data for inspecting a program: its executable, the trace that it was compiled from, and the stack there.

    JAX names the lines of a program by the stack that the trace was lowered at.
    """

    __slots__ = ("__weakref__", "executable", "stack", "traced")

    def __init__(self, executable: jax.stages.Compiled, traced: Any, stack: Any = None):
        self.executable, self.traced, self.stack = executable, traced, stack


_MOST_BYTES = 2**63 - 1


def _check_sizes(jaxpr: Any, seen: set[int]) -> None:
    """Refuse a program with an array that no memory can hold, or that XLA cannot count: it ends the process for one.

    XLA multiplies as is done here, so that a later size of zero does not help.

    Raises:
        RuntimeError: in torch's words.
    """
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for variables in (jaxpr.invars, *(equation.outvars for equation in jaxpr.eqns)):
        for aval in [v.aval for v in variables]:
            nbytes = getattr(getattr(aval, "dtype", None), "itemsize", 1)
            for n in getattr(aval, "shape", ()):
                nbytes *= n
                if nbytes > _MOST_BYTES:
                    raise RuntimeError(
                        f"Storage size calculation overflowed with sizes={list(aval.shape)}"
                    )
    for equation in jaxpr.eqns:
        for inner in equation.params.values():
            for part in inner if isinstance(inner, list | tuple) else (inner,):
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    _check_sizes(part, seen)


def finish(
    traced: Any,
    name: str,
    trace_seconds: float,
    avals: Sequence[Any],
    cause: Trace = stats.EAGER,
    part: str = "",
) -> tuple[Callable[..., Any], stats.Compiled]:
    """Compile a trace; returns what runs it, which takes flat arrays, and its record."""
    started = time.perf_counter()
    _check_sizes(traced.jaxpr.jaxpr, set())
    with phase(name, "lowering") as own, jax.enable_x64(True):
        lowered = traced.lower()
        middle = time.perf_counter()
        own.step = "XLA"
        executable = lowered.compile()
    done = time.perf_counter()
    call = fast_call(executable)
    if isinstance(call, jax.stages.Compiled):  # takes no attribute
        call = functools.partial(call)
    handle = call.program = Handle(executable, without_lowering(traced), stack())  # type: ignore[attr-defined]  # JAX's callable takes any
    found = None if cause.site else origin(None)
    record = stats.Compiled(
        name,
        trace_seconds + cause.seconds,
        done - middle,
        middle - started,
        cause,
        part,
        cause.site if found is None else site_of(found),
        avals,
        persistent_hit=own.found,
        handle=weakref.ref(handle),
    )
    cause.seconds = 0.0
    stats.compiled.append(record)
    return call, record
