"""What is recorded while somebody wants to look: JAX's own compile events, and how often eager operators run.

`start` and `stop` are what `%load_ext jaxtorch` and `%unload_ext jaxtorch` call; a script calls them itself. What the
engine records of its own programs needs neither.

* **Events.** `jax.monitoring` tells of each trace, lowering and compilation, by the function's name, when it is done.
  Those of our own programs are known better (`programs/compiling.py`): a thread that has a phase open is ours, and of
  its events only the persistent cache's, which carry no name, are of use. All else is JAX code of the user's, or a
  small array operation of the engine's. How often it runs JAX tells nobody, for a call goes through C++ alone. Its
  jaxpr is known by a weak reference, as long as JAX keeps it for the function. A listener that raises would break the
  user's compilation: whatever goes wrong here is kept in `errors`, and nothing is said.
* **Calls.** The hot path of eager operators counts nothing. While calls are recorded, the function that runs a program
  is one that counts first; stopping puts the program's own back.
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
from ..dispatch import program
from ..programs import compiling, stats
from ..programs.compiling import Handle
from ..programs.site import origin, own_first, site_of

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
    """What JAX has said in this thread of programs that are not compiled yet."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}  # (step, name) -> seconds
        self.found: bool | None = None  # in the persistent cache
        self.jaxpr: tuple[str, weakref.ref[Any]] | None = (
            None  # that was lowered last, and its name
        )


_pending = _Pending()


def start() -> None:
    """Record from now on. A second call changes nothing."""
    global _running
    with _lock:
        if not _running:
            monitoring.register_event_listener(_event)
            monitoring.register_event_duration_secs_listener(_duration)
            program.count_calls(True)
            _running = True


def stop() -> None:
    """Record no longer; what was recorded stays."""
    global _running
    with _lock:
        if _running:
            _running = False
            program.count_calls(False)
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
    phase = compiling.here()
    if phase is None:
        _pending.found = found
    elif phase.step == "XLA":
        phase.found = found


def _compiled(step: str, seconds: float, name: str) -> None:
    if compiling.here() is not None:
        return
    inner = _NAME.match(name)
    name = inner[1] if inner else name
    _pending.seconds[step, name] = seconds
    compiling.hear(name, _NEXT[step])
    if step == "lowering" and (jaxpr := lowered_jaxpr()) is not None:
        _pending.jaxpr = name, weakref.ref(jaxpr)
    if step != "XLA":
        return
    # What is left are traces of functions inside of this one.
    known, found, lowered = _pending.seconds, _pending.found, _pending.jaxpr
    _pending.seconds, _pending.found, _pending.jaxpr = {}, None, None
    place = origin(None)
    kind = "engine" if own_first() else "jax.jit"
    site = None if place is None else site_of(place)
    source = _source(name, kind, site)
    source.traces += ("trace", name) in known
    fingerprint, avals = newest_executable(name) or (None, [])
    stats.compiled.append(
        stats.Compiled(
            name,
            known.get(("trace", name), 0.0),
            seconds,
            known.get(("lowering", name), 0.0),
            stats.Trace(source, site),
            site=site,
            avals=avals,
            persistent_hit=found,
            handle=partial(
                _handle, fingerprint, name, lowered[1] if lowered and lowered[0] == name else None
            ),
        )
    )


def _handle(fingerprint: Any, name: str, jaxpr: weakref.ref[Any] | None) -> Handle | None:
    """The executable, while it lives, with its trace, while JAX keeps that."""
    found: Any = None if fingerprint is None else find_executable(fingerprint)
    if found is None:
        return None
    traced = None if jaxpr is None else jaxpr()
    return Handle(found, None if traced is None else LiveTrace(traced, name))


_sources: dict[tuple[str, str, Any], stats.Source] = {}


def _source(name: str, kind: str, site: Any) -> stats.Source:
    """JAX says no more of a function than its name: those of one name called from one line are one."""
    return _sources.setdefault((name, kind, site), stats.Source(name, kind))
