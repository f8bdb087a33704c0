"""Optional recording: JAX's own compile events, and how often eager operators run.

`%load_ext jaxtorch` calls `start`, and `%unload_ext jaxtorch` calls `stop`. Scripts call them directly. The engine
always records its own programs.

* **Events.** When a trace, a lowering or a compilation is done, `jax.monitoring` reports it with the function's name.
  `programs/compiling.py` already records the engine's own programs in more detail, so while a thread has an open
  phase, only the events of the persistent cache are used. (They carry no name.) All other events come from the user's
  JAX code or from small array operations of the engine. JAX does not report how often such a function runs, because
  the calls stay in C++. A weak reference holds its jaxpr, for as long as JAX keeps it. An exception in a listener
  would break the user's compilation, so exceptions are collected in `errors` and not shown.
* **Calls.** The hot path of eager operators counts nothing. While calls are recorded, a function that also counts
  replaces the one that runs a program. `stop` restores the original.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from jax import monitoring

from ..base.jax_live import LiveTrace, find_executable, lowered_jaxpr, newest_executable
from ..dispatch import executable
from ..programs import compiling, stats
from ..programs.compiling import Handle
from ..programs.site import called_by_engine, origin, site_of

_HIT, _MISS = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"
_STEPS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "XLA",
}
_NEXT = {"trace": "lowering", "lowering": "XLA", "XLA": None}
_NAME = re.compile(r"\w+\((.*)\)$")  # "jit(f)"

errors: list[BaseException] = []
_lock = threading.Lock()
_running = False


class _Pending(threading.local):
    """The reports of JAX in this thread about programs that are not compiled yet."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}  # (step, name) -> seconds
        self.persistent_hit: bool | None = None  # in the persistent cache
        self.jaxpr: tuple[str, weakref.ref[Any]] | None = None  # the last one lowered, and its name


_pending = _Pending()


def start() -> None:
    """Start recording. A second call has no effect."""
    global _running
    with _lock:
        if not _running:
            monitoring.register_event_listener(_event)
            monitoring.register_event_duration_secs_listener(_duration)
            executable.count_calls(True)
            _running = True


def stop() -> None:
    """Stop recording, and keep the records."""
    global _running
    with _lock:
        if _running:
            _running = False
            executable.count_calls(False)
            with _ignore_unregistered():
                monitoring.unregister_event_listener(_event)
            with _ignore_unregistered():
                monitoring.unregister_event_duration_listener(_duration)


def _ignore_unregistered() -> AbstractContextManager[None]:
    return suppress(AssertionError, ValueError)


def recording() -> bool:
    """Whether calls and events are being recorded."""
    return _running


def _event(event: str, **_: Any) -> None:
    if event in (_HIT, _MISS):
        _safely(_cached, event == _HIT)


def _duration(event: str, duration_secs: float, **details: Any) -> None:
    step = _STEPS.get(event)
    if step is not None:
        _safely(_compiled, step, duration_secs, str(details.get("fun_name", "")))


def _safely(listener: Callable[..., None], *arguments: Any) -> None:
    try:
        listener(*arguments)
    except Exception as error:
        errors.append(error)
        del errors[:-10]


def _cached(hit: bool) -> None:
    phase = compiling.current_phase()
    if phase is None:
        _pending.persistent_hit = hit
    elif phase.step == "XLA":
        phase.cached = hit


def _compiled(step: str, seconds: float, name: str) -> None:
    if compiling.current_phase() is not None:
        return
    inner = _NAME.match(name)
    name = inner[1] if inner else name
    _pending.seconds[step, name] = seconds
    compiling.on_step_end(name, _NEXT[step])
    if step == "lowering" and (jaxpr := lowered_jaxpr()) is not None:
        _pending.jaxpr = name, weakref.ref(jaxpr)
    if step != "XLA":
        return
    # All other pending entries are traces of functions that this one calls.
    seconds_by_step, persistent_hit, lowered = (
        _pending.seconds,
        _pending.persistent_hit,
        _pending.jaxpr,
    )
    _pending.seconds, _pending.persistent_hit, _pending.jaxpr = {}, None, None
    caller = origin(None)
    kind = "engine" if called_by_engine() else "jax.jit"
    site = None if caller is None else site_of(caller)
    source = _source(name, kind, site)
    source.traces += ("trace", name) in seconds_by_step
    fingerprint, avals = newest_executable(name) or (None, [])
    stats.compiled.append(
        stats.ProgramRecord(
            name,
            seconds_by_step.get(("trace", name), 0.0),
            seconds,
            seconds_by_step.get(("lowering", name), 0.0),
            stats.TraceRecord(source, site),
            site=site,
            avals=avals,
            persistent_hit=persistent_hit,
            handle=partial(
                _handle, fingerprint, name, lowered[1] if lowered and lowered[0] == name else None
            ),
        )
    )


def _handle(fingerprint: Any, name: str, jaxpr: weakref.ref[Any] | None) -> Handle | None:
    """The executable if it is still alive, with its trace if JAX still keeps it."""
    executable: Any = None if fingerprint is None else find_executable(fingerprint)
    if executable is None:
        return None
    traced = None if jaxpr is None else jaxpr()
    return Handle(executable, None if traced is None else LiveTrace(traced, name))


_sources: dict[tuple[str, str, Any], stats.FunctionRecord] = {}


def _source(name: str, kind: str, site: Any) -> stats.FunctionRecord:
    """The record of a function. JAX reports only names, so functions with one name and one calling line share it."""
    return _sources.setdefault((name, kind, site), stats.FunctionRecord(name, kind))
