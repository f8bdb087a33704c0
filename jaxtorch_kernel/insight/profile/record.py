"""Running something under JAX's profiler, while the device's dispatch says which line asked for each eager program.

    recording = record(lambda: train_step(x, y), repeat=3, warmup=1)

What the profiler writes goes to a temporary directory and is read into arrays (`events.py`). Beside it stands what the
profiler cannot know: the launches of eager programs with their lines and modules (`launches.py`), and JAX's phases of
compilation. Whatever happens inside, the profiler is stopped and the session is as it was.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...device import streams
from ...programs.watching import Watcher, watching
from ...storage.buffer import usage
from .events import Events, read
from .launches import Launch, Launches

RUN, WAITING = "jaxtorch: run", "jaxtorch: wait for the device"

_PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "xla",
}


class ProfileError(RuntimeError):
    """A profile that could not be taken."""


@dataclass(frozen=True)
class Compilation:
    """A phase of a compilation while the profile ran: `trace`, `lower` or `xla`; nanoseconds of the profile's clock."""

    phase: str
    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Memory:
    """Bytes that tensors of at least 32 KiB hold: before, at most meanwhile, after."""

    before: int
    peak: int
    after: int


@dataclass(frozen=True, eq=False)
class Recording:
    """What was seen of some runs.

    Attributes:
        result: what the last run returned.
        error: what ended it; the profile then shows what ran until there.
        runs: (start, end) of each run in nanoseconds of the profile's clock, the wait for the device included.
        launches: of eager programs, in order.
        lane: index of the lane of the thread that ran it, or -1.
    """

    result: Any
    error: BaseException | None
    events: Events
    runs: tuple[tuple[int, int], ...]
    launches: tuple[Launch, ...]
    compilations: tuple[Compilation, ...]
    lane: int
    memory: Memory | None


def record(
    function: Callable[[], Any], *, repeat: int = 1, warmup: int = 0, memory: bool = False
) -> Recording:
    """Run a function `repeat` times under the profiler, after `warmup` times without.

    What torch code launched is waited for, also where its result is dropped. A result of JAX code of the user's that is
    dropped at once may still be computed when the profile begins or ends.

    An exception of the function ends the runs and is kept in `error`, for the caller to raise when it has shown what
    was seen until there.

    Raises:
        ProfileError: a profile is running already; it goes on.
        ValueError: nothing to run.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.profile.record import record
        >>> x = torch.ones(8, device="jax")
        >>> len(record(lambda: x + 1, repeat=2).runs)
        2
    """
    if repeat < 1 or warmup < 0:
        raise ValueError(f"a profile runs at least once, not repeat={repeat}, warmup={warmup}")
    with watching(lambda program: None) as watcher:
        for _ in range(warmup):
            function()
        _rest(watcher)
    launches = Launches()
    compilations: list[tuple[str, str, float, float]] = []
    result, error = None, None
    before = usage.allocated
    with _profiler() as profile, ExitStack() as scope:
        scope.enter_context(_compilations(compilations))
        watcher = scope.enter_context(watching(launches.launched))
        scope.enter_context(launches.following())
        scope.enter_context(_peak(memory))
        try:
            for i in range(repeat):
                with jax.profiler.TraceAnnotation(f"{RUN} {i + 1}"):
                    result = function()
                    with jax.profiler.TraceAnnotation(WAITING):
                        _rest(watcher)
        except BaseException as caught:
            error = caught
            with suppress(Exception):  # the first error is the one to be told
                _rest(watcher)
        most = usage.peak
    data = profile()
    events, zero = read(data), _began(data)
    runs, lane = _runs(events)
    return Recording(
        result,
        error,
        events,
        runs,
        tuple(launches.found),
        tuple(
            Compilation(phase, name, int(start * 1e9) - zero, int(end * 1e9) - zero)
            for phase, name, start, end in compilations
        ),
        lane,
        Memory(before, most, usage.allocated) if memory else None,
    )


@contextmanager
def _profiler() -> Iterator[Callable[[], Any]]:
    """Hold while JAX's profiler runs; afterwards the function given returns the `ProfileData`."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = (
        0  # a Python event for each call of a function would drown the rest
    )
    options.host_tracer_level = 2
    with tempfile.TemporaryDirectory(prefix="jaxtorch_profile_") as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError as error:
            raise ProfileError(
                "JAX's profiler runs already (jax.profiler.start_trace or trace): one profile at a time. It goes on; "
                "stop it with jax.profiler.stop_trace() and ask again."
            ) from error
        found: list[Any] = []
        try:
            yield lambda: found[0]
        finally:
            stopped = _surely(jax.profiler.stop_trace)
        if not stopped:
            raise ProfileError("the profile was stopped by the code that was profiled")
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        found.append(jax.profiler.ProfileData.from_file(str(files[-1])))


def _surely(stop: Callable[[], None]) -> bool:
    """Stop, even if Ctrl-C comes meanwhile; False where nothing was left to stop."""
    try:
        try:
            stop()
        except KeyboardInterrupt:
            stop()
            raise
    except RuntimeError:
        return False
    return True


def _rest(watcher: Watcher) -> None:
    """Wait until the device has nothing left to do, of what is still held and of what was dropped."""
    watcher.wait()
    streams.synchronize()


@contextmanager
def _compilations(found: list[tuple[str, str, float, float]]) -> Iterator[None]:
    """Note what this thread compiles."""
    thread = threading.get_ident()

    def heard(event: str, start_time: float, end_time: float, **more: Any) -> None:
        phase = _PHASES.get(event)
        if phase is not None and threading.get_ident() == thread:
            found.append((phase, str(more.get("fun_name", "")), start_time, end_time))

    jax.monitoring.register_event_time_span_listener(heard)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_time_span_listener(heard)


@contextmanager
def _peak(wanted: bool) -> Iterator[None]:
    """Hold while `usage.peak` is that of this time; afterwards it is the session's again."""
    if not wanted:
        yield
        return
    session = usage.peak
    usage.peak = usage.allocated
    try:
        yield
    finally:
        usage.peak = max(usage.peak, session)


def _began(data: Any) -> int:
    """The profile's zero, in nanoseconds since the epoch."""
    for plane in data.planes:
        for name, value in plane.stats:
            if name == "profile_start_time":
                return int(value)
    return time.time_ns()


def _runs(events: Events) -> tuple[tuple[tuple[int, int], ...], int]:
    """When each run was, and in which lane."""
    numbers = [i for i, name in enumerate(events.names) if name.startswith(RUN)]
    rows = np.flatnonzero(np.isin(events.name, numbers))
    runs = [
        (int(events.start[i]), int(events.start[i] + events.duration[i]))
        for i in rows[np.argsort(events.start[rows])]
    ]
    return tuple(runs), int(events.lane[rows[0]]) if len(rows) else -1
