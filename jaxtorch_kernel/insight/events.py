"""Optional recording: JAX's own compile events, and how often eager operators run.

`%load_ext jaxtorch` calls `start` and `%unload_ext jaxtorch` calls `stop`; scripts call them directly. The engine
records its own programs without either.

* **Events.** `jax.monitoring` reports each trace, lowering and compilation with the function's name when it is done.
  The engine's own programs are already recorded in more detail (`programs/compiling.py`): while a thread has an open
  phase, only the persistent cache's events, which carry no name, are used. All other events are from the user's JAX
  code, or from small array operations of the engine. JAX does not report how often such a function runs, since calls
  stay in C++. Its jaxpr is held by a weak reference, for as long as JAX keeps it. A listener that raises would break
  the user's compilation: errors here are collected in `errors` and not shown.
* **Calls.** The hot path of eager operators counts nothing. While calls are recorded, the function that runs a program
  is replaced by one that counts first; `stop` restores it.
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

from ..base.jax_private import LiveTrace, find_executable, lowered_jaxpr, newest_executable
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
    """What JAX has reported in this thread about programs that are not compiled yet."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}  # (step, name) -> seconds
        self.found: bool | None = None  # in the persistent cache
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
    """Stop recording; keep what was recorded."""
    global _running
    with _lock:
        if _running:
            _running = False
            executable.count_calls(False)
            with _if_somebody_cleared_them():
                monitoring.unregister_event_listener(_event)
            with _if_somebody_cleared_them():
                monitoring.unregister_event_duration_listener(_duration)


def _if_somebody_cleared_them() -> AbstractContextManager[None]:
    return suppress(AssertionError, ValueError)


def recording() -> bool:
    """Whether `start` was called last."""
    return _running


def _event(event: str, **_: Any) -> None:
    if event in (_HIT, _MISS):
        _safely(_cached, event == _HIT)


def _duration(event: str, duration_secs: float, **said: Any) -> None:
    step = _STEPS.get(event)
    if step is not None:
        _safely(_compiled, step, duration_secs, str(said.get("fun_name", "")))


def _safely(listener: Callable[..., None], *arguments: Any) -> None:
    try:
        listener(*arguments)
    except Exception as error:
        errors.append(error)
        del errors[:-10]


def _cached(found: bool) -> None:
    phase = compiling.current_phase()
    if phase is None:
        _pending.found = found
    elif phase.step == "XLA":
        phase.cached = found


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
    # The rest are traces of functions called inside this one.
    known, found, lowered = _pending.seconds, _pending.found, _pending.jaxpr
    _pending.seconds, _pending.found, _pending.jaxpr = {}, None, None
    place = origin(None)
    kind = "engine" if called_by_engine() else "jax.jit"
    site = None if place is None else site_of(place)
    source = _source(name, kind, site)
    source.traces += ("trace", name) in known
    fingerprint, avals = newest_executable(name) or (None, [])
    stats.compiled.append(
        stats.ProgramRecord(
            name,
            known.get(("trace", name), 0.0),
            seconds,
            known.get(("lowering", name), 0.0),
            stats.TraceRecord(source, site),
            site=site,
            avals=avals,
            persistent_hit=found,
            handle=partial(
                _handle, fingerprint, name, lowered[1] if lowered and lowered[0] == name else None
            ),
        )
    )


def _handle(fingerprint: Any, name: str, jaxpr: weakref.ref[Any] | None) -> Handle | None:
    """The executable while it is alive, with its trace while JAX keeps it."""
    found: Any = None if fingerprint is None else find_executable(fingerprint)
    if found is None:
        return None
    traced = None if jaxpr is None else jaxpr()
    return Handle(found, None if traced is None else LiveTrace(traced, name))


_sources: dict[tuple[str, str, Any], stats.FunctionRecord] = {}


def _source(name: str, kind: str, site: Any) -> stats.FunctionRecord:
    """JAX reports only a function's name: functions with one name called from one line count as one."""
    return _sources.setdefault((name, kind, site), stats.FunctionRecord(name, kind))
