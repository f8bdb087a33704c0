"""Runs a function under JAX's profiler and records which line launched each eager program.

    recording = record(lambda: train_step(x, y), repeat=3, warmup=1)

`sampling.py` runs the profiler, in windows if the run is long, and `events.py` reads its events into arrays. The
profiler does not know two things, which are recorded separately: the launches of eager programs with their lines and
modules (`launches.py`), and JAX's compilation phases. If the function raises, the profiler is still stopped and the
session restored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax

from ...base import torch_private as private
from ...device import streams
from ...programs.stats import ProgramRecord
from ...programs.watching import Watcher, watching
from ...storage.buffer import usage
from .events import Events
from .launches import Launch, Launches
from .sampling import WAITING, ProfileError, ProfileWindow, Sampler, Span

__all__ = ["Compilation", "ProfileError", "Recording", "RunMemory", "record"]

_PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "xla",
}

# A compilation by the common clock: phase, name, start and end in seconds, and whether a backward pass compiled it.
_Compiled = tuple[str, str, float, float, bool]


@dataclass(frozen=True)
class Compilation:
    """A compilation phase, `trace`, `lower` or `xla`, in nanoseconds of the profile's clock.

    `backward` says that a backward pass compiled it, in a thread of torch's.
    """

    phase: str
    name: str
    start: int
    end: int
    backward: bool


@dataclass(frozen=True)
class RunMemory:
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
        count: the number of runs.
        spans: the parts of the runs that were recorded, including the wait for the device.
        windows: the stretches of time in which the profiler ran.
        launches: the launches of eager programs in the windows, in order.
        lane: index of the lane of the calling thread, or -1.
    """

    result: Any
    error: BaseException | None
    events: Events
    count: int
    spans: tuple[Span, ...]
    windows: tuple[ProfileWindow, ...]
    launches: tuple[Launch, ...]
    compilations: tuple[Compilation, ...]
    lane: int
    memory: RunMemory | None

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(start, end) of each run in nanoseconds of the profile's clock; empty spans if no window has a part of it."""
        by_run: dict[int, list[Span]] = {}
        for span in self.spans:
            by_run.setdefault(span.run, []).append(span)
        return tuple((spans[0].start, spans[-1].end) for spans in by_run.values())

    @property
    def recorded(self) -> float:
        """The time of the runs that was recorded, in nanoseconds."""
        return float(sum(span.end - span.start for span in self.spans))

    @property
    def total(self) -> float:
        """The time of all runs in nanoseconds, with the pauses of the profiler."""
        return sum((span.end - span.start) * span.weight for span in self.spans)


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
    compilations: list[_Compiled] = []
    before = usage.allocated

    def launched(program: ProgramRecord) -> None:
        sampler.at_launch()
        launches.add(program, keep=sampler.recording)

    sampler = Sampler(lambda: _synchronize(watcher), lambda: len(launches.launches))
    with sampler, ExitStack() as scope:
        scope.enter_context(_compilations(compilations))
        watcher = scope.enter_context(watching(launched))
        scope.enter_context(launches.track_scopes())
        scope.enter_context(_peak(memory))
        result, error, count = _run(function, repeat, watcher, sampler)
        peak = usage.peak
    if sampler.failed:
        raise ProfileError(sampler.failed)
    events, lane, spans = sampler.result()
    return Recording(
        result,
        error,
        events,
        count,
        spans,
        tuple(sampler.windows),
        tuple(launches.launches),
        tuple(_on_clock(compilations, sampler.windows)),
        lane,
        RunMemory(before, peak, usage.allocated) if memory else None,
    )


def _run(
    function: Callable[[], Any], repeat: int, watcher: Watcher, sampler: Sampler
) -> tuple[Any, BaseException | None, int]:
    """Run a function and wait for the device, `repeat` times. Returns the last result, the error and the runs begun."""
    result, count = None, 0
    try:
        for count in range(1, repeat + 1):
            with sampler.run(count):
                result = function()
                with jax.profiler.TraceAnnotation(WAITING):
                    _synchronize(watcher)
    except BaseException as error:
        with suppress(Exception):  # the first error is the one to report
            _synchronize(watcher)
        return result, error, count
    return result, None, count


def _on_clock(compilations: list[_Compiled], windows: list[ProfileWindow]) -> Iterator[Compilation]:
    """The compilations in the windows, by the profile's clock. One that ends in a pause ends with its window."""
    for phase, name, start, end, backward in compilations:
        for window in windows:
            begins = int(start * 1e9) - window.zero + window.start
            ends = min(int(end * 1e9) - window.zero + window.start, window.end)
            if window.start <= begins < ends:
                yield Compilation(phase, name, begins, ends, backward)


def _synchronize(watcher: Watcher) -> None:
    """Wait until the device is idle, including work whose results were dropped."""
    watcher.wait()
    streams.synchronize()


@contextmanager
def _compilations(compilations: list[_Compiled]) -> Iterator[None]:
    """Record what this thread compiles, and the backward passes that it waits for."""
    thread = threading.get_ident()

    def listener(event: str, start_time: float, end_time: float, **more: Any) -> None:
        phase = _PHASES.get(event)
        backward = threading.get_ident() != thread
        if phase is None or (backward and private.current_autograd_node() is None):
            return
        name = str(more.get("fun_name", ""))
        compilations.append((phase, name, start_time, end_time, backward))

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
