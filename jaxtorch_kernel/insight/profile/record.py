"""Runs a function under JAX's profiler and records which line launched each eager program.

    recording = record(lambda: train_step(x, y), repeat=3, warmup=1)

The profiler writes its events to a temporary directory, and `events.py` reads them into arrays. The profiler does not
know two things, which are recorded separately: the launches of eager programs with their lines and modules
(`launches.py`), and JAX's compilation phases. If the function raises, the profiler is still stopped and the session
restored.
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
from .events import Events, read_events
from .launches import Launch, Launches

RUN, WAITING = "jaxtorch: run", "jaxtorch: wait for the device"

_PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "xla",
}


class ProfileError(RuntimeError):
    """The profile could not be recorded."""


@dataclass(frozen=True)
class Compilation:
    """A compilation phase, `trace`, `lower` or `xla`, in nanoseconds of the profile's clock."""

    phase: str
    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Memory:
    """The bytes held by tensors of at least 32 KiB: before the runs, at the peak, and after the runs."""

    before: int
    peak: int
    after: int


@dataclass(frozen=True, eq=False)
class Recording:
    """The recording of one or more runs.

    Attributes:
        result: the return value of the last run.
        error: the exception that ended it, if any; the profile then covers what ran before.
        runs: (start, end) of each run in nanoseconds of the profile's clock, including the wait for the device.
        launches: the launches of eager programs, in order.
        lane: index of the lane of the calling thread, or -1.
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
    """Run a function `repeat` times under the profiler, after `warmup` unprofiled runs.

    Each run waits for everything that torch code launched, even if its result was dropped. If the user's own JAX code
    drops a result at once, the computation may still run when the profile starts or ends.

    An exception in the function ends the runs and is stored in `error`. The caller shows the profile, then raises it.

    Raises:
        ProfileError: another profile is running; it keeps running.
        ValueError: `repeat` is less than 1 or `warmup` is negative.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.profile.record import record
        >>> x = torch.ones(8, device="jax")
        >>> len(record(lambda: x + 1, repeat=2).runs)
        2
    """
    if repeat < 1 or warmup < 0:
        raise ValueError(
            f"a profile runs at least once: repeat must be >= 1 and warmup >= 0, not {repeat} and {warmup}"
        )
    with watching(lambda program: None) as watcher:
        for _ in range(warmup):
            function()
        _synchronize(watcher)
    launches = Launches()
    compilations: list[tuple[str, str, float, float]] = []
    before = usage.allocated
    with _profiler() as profile, ExitStack() as scope:
        scope.enter_context(_compilations(compilations))
        watcher = scope.enter_context(watching(launches.add))
        scope.enter_context(launches.track_scopes())
        scope.enter_context(_peak(memory))
        result, error = _run(function, repeat, watcher)
        peak = usage.peak
    data = profile()
    events, zero = read_events(data), _start_time(data)
    runs, lane = _runs(events)
    return Recording(
        result,
        error,
        events,
        runs,
        tuple(launches.launches),
        tuple(
            Compilation(phase, name, int(start * 1e9) - zero, int(end * 1e9) - zero)
            for phase, name, start, end in compilations
        ),
        lane,
        Memory(before, peak, usage.allocated) if memory else None,
    )


def _run(
    function: Callable[[], Any], repeat: int, watcher: Watcher
) -> tuple[Any, BaseException | None]:
    """Run a function and wait for the device, `repeat` times. Returns the last result and the error, if any."""
    result = None
    try:
        for i in range(repeat):
            with jax.profiler.TraceAnnotation(f"{RUN} {i + 1}"):
                result = function()
                with jax.profiler.TraceAnnotation(WAITING):
                    _synchronize(watcher)
    except BaseException as error:
        with suppress(Exception):  # the first error is the one to report
            _synchronize(watcher)
        return result, error
    return result, None


@contextmanager
def _profiler() -> Iterator[Callable[[], Any]]:
    """Run JAX's profiler for the block. After the block, the yielded function returns the `ProfileData`."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # one event per Python function call would hide all others
    options.host_tracer_level = 2
    with tempfile.TemporaryDirectory(prefix="jaxtorch_profile_") as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError as error:
            raise ProfileError(
                "JAX's profiler is already running (jax.profiler.start_trace or trace): one profile at a time. "
                "Stop it with jax.profiler.stop_trace() and try again."
            ) from error
        data: list[Any] = []
        try:
            yield lambda: data[0]
        finally:
            stopped = _stop_profiler(jax.profiler.stop_trace)
        if not stopped:
            raise ProfileError("the profiler was stopped by the code being profiled")
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        data.append(jax.profiler.ProfileData.from_file(str(files[-1])))


def _stop_profiler(stop: Callable[[], None]) -> bool:
    """Stop the profiler, even if Ctrl-C arrives meanwhile. False if it was not running."""
    try:
        try:
            stop()
        except KeyboardInterrupt:
            stop()
            raise
    except RuntimeError:
        return False
    return True


def _synchronize(watcher: Watcher) -> None:
    """Wait until the device is idle, including work whose results were dropped."""
    watcher.wait()
    streams.synchronize()


@contextmanager
def _compilations(compilations: list[tuple[str, str, float, float]]) -> Iterator[None]:
    """Record what this thread compiles."""
    thread = threading.get_ident()

    def listener(event: str, start_time: float, end_time: float, **more: Any) -> None:
        phase = _PHASES.get(event)
        if phase is not None and threading.get_ident() == thread:
            compilations.append((phase, str(more.get("fun_name", "")), start_time, end_time))

    jax.monitoring.register_event_time_span_listener(listener)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_time_span_listener(listener)


@contextmanager
def _peak(wanted: bool) -> Iterator[None]:
    """Make `usage.peak` the peak of this block; restore the session's peak afterwards."""
    if not wanted:
        yield
        return
    session = usage.peak
    usage.peak = usage.allocated
    try:
        yield
    finally:
        usage.peak = max(usage.peak, session)


def _start_time(data: Any) -> int:
    """The start of the profile, in nanoseconds since the epoch."""
    for plane in data.planes:
        for name, value in plane.stats:
            if name == "profile_start_time":
                return int(value)
    return time.time_ns()


def _runs(events: Events) -> tuple[tuple[tuple[int, int], ...], int]:
    """The time span of each run, and the lane of the calling thread."""
    numbers = [i for i, name in enumerate(events.names) if name.startswith(RUN)]
    rows = np.flatnonzero(np.isin(events.name, numbers))
    runs = [
        (int(events.start[i]), int(events.start[i] + events.duration[i]))
        for i in rows[np.argsort(events.start[rows])]
    ]
    return tuple(runs), int(events.lane[rows[0]]) if len(rows) else -1
