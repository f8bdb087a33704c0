"""Runs JAX's profiler in windows, so that the profile of a long run is bounded in time and memory.

XLA keeps about a kilobyte of memory for each event until the profiler stops, and reading an event takes microseconds. A
training loop has 100,000 events a second. So the profiler runs in windows of about 60,000 events, and each window is
read into compact arrays when it ends. While reading takes little of the run's time, the windows are consecutive.
Otherwise the profiler pauses between them, and the windows after the first pause also represent the pauses: their
weight is above 1.

A window begins and ends at a launch of the calling thread, once the device is idle. So a window has the events of its
launches, and no others. A thread handles code without such launches: plain JAX code, or work in other threads. It ends
a window when the process's memory has grown too much, and begins the next. Events that are running then may be lost.

The first pause comes after a window in which the device worked, so that a profile is not empty by accident.

Times in the profile exclude the pauses and the reading: the windows are joined on one clock.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import jax

from ...base.jax_private import stop_profiler
from ...programs import compiling
from .events import CALLER, Events, Reader

WAITING = "jaxtorch: wait for the device"

_FIRST = 0.5  # seconds of the first window
_LONGEST = 10.0
_EVENTS = 60_000  # of a window, as the profiler writes them
_FREE, _SHARE = 1.0, 0.2  # reading may take this many seconds, and this part of the run's time
_KEPT = 500_000  # events; with each such number of them, the part is halved
_GROWTH = 400 << 20  # bytes by which the process may grow in a window without a launch


class ProfileError(RuntimeError):
    """The profile could not be recorded."""


@dataclass(frozen=True)
class Span:
    """A part of a run, in nanoseconds of the profile's clock.

    Attributes:
        weight: the run's time that it represents, as a multiple of its own.
    """

    run: int
    start: int
    end: int
    weight: float = 1.0


@dataclass(frozen=True)
class ProfileWindow:
    """A stretch of time in which the profiler ran.

    Attributes:
        zero: its start, in nanoseconds since the epoch.
        start: its start by the profile's clock.
        end: its end by the profile's clock.
        launches: the number of launches before it.
    """

    zero: int
    start: int
    end: int
    launches: int


class Sampler:
    """Runs the profiler while it is entered, in windows.

    Args:
        wait: waits until the device is idle.
        launches: the number of launches recorded so far.
    """

    def __init__(self, wait: Callable[[], None], launches: Callable[[], int]):
        self.windows: list[ProfileWindow] = []
        self.recording = False
        self.failed = ""
        self.gap = 0.0  # seconds of runs outside all windows
        self._wait, self._launches = wait, launches
        self._reader = Reader()
        self._spans: list[Span] = []
        self._paused = -1  # the first window after a pause
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._open: list[
            tuple[int, int, int]
        ] = []  # run, start, end since the epoch, in this window
        self._run: tuple[int, int] | None = None  # the run and the start of its part in this window
        self._data: bytes | None = None  # of a window that is not read yet
        self._begun = self._changed = time.perf_counter()
        self._read = 0.0  # seconds
        self._length, self._due = _FIRST, 0.0
        self._started = 0  # launches before this window

    def __enter__(self) -> Sampler:
        self._folder = tempfile.TemporaryDirectory(prefix="jaxtorch_profile_")
        try:
            self._start()
        except RuntimeError as error:
            self._folder.cleanup()
            raise ProfileError(
                "JAX's profiler is already running (jax.profiler.start_trace or trace): one profile at a time. "
                "Stop it with jax.profiler.stop_trace() and try again."
            ) from error
        self._begun = time.perf_counter()
        self._watch = threading.Thread(target=self._guard, name="jaxtorch-profile", daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        try:
            with self._lock:
                self._stop()
        except BaseException:
            if self.recording:  # an interrupt came first
                self._halt()
            raise
        finally:
            self._watch.join()
            self._folder.cleanup()

    @contextmanager
    def run(self, number: int) -> Iterator[None]:
        """Count the time of this block as that of a run."""
        self._changed = time.perf_counter()
        self._run = number, time.time_ns()
        try:
            yield
        finally:
            with self._lock:
                self._close()
                if not self.recording:
                    self.gap += time.perf_counter() - self._changed
                self._run = None

    def at_launch(self) -> None:
        """End or begin a window, if it is time. Called before each launch, in any thread."""
        if time.perf_counter() < self._due or threading.get_ident() != self._thread:
            return
        if self._run is None or self.failed:
            return
        with jax.profiler.TraceAnnotation(WAITING):
            self._wait()
        with self._lock:
            self._turn()

    def _turn(self) -> None:
        """End a window, or begin one after a pause. The lock is held."""
        stands_still = self.recording and threading.get_ident() == self._thread
        self._stop()
        pause = self._pause()
        self._due = time.perf_counter() + pause
        if pause <= 0:
            self._resume(gap=not stands_still)

    def result(self) -> tuple[Events, int, tuple[Span, ...]]:
        """The events, the lane of the calling thread (-1 if unknown), and the parts of the runs with their weights."""
        events, lane = self._reader.finish()
        weight = self._weight()
        spans = (
            Span(s.run, s.start, s.end, weight if self._follows_pause(s) else 1.0)
            for s in self._spans
        )
        return events, lane, tuple(spans)

    def _weight(self) -> float:
        """The time that a recorded second represents after the first pause, estimated over all windows since."""
        if not self.gap:
            return 1.0
        if self._paused >= 0:
            recorded = sum(s.end - s.start for s in self._spans if self._follows_pause(s)) / 1e9
            if recorded > 0.02 * self.gap:
                return 1 + self.gap / recorded
        self._paused = 0
        recorded = sum(s.end - s.start for s in self._spans) / 1e9
        return 1 + self.gap / recorded if recorded else 1.0

    def _follows_pause(self, span: Span) -> bool:
        return (
            0 <= self._paused < len(self.windows) and span.start >= self.windows[self._paused].start
        )

    def _pause(self) -> float:
        """Seconds for which the profiler has to pause, so that reading stays within its part of the time."""
        if (
            not self._reader.on_device
        ):  # the work may be what comes next: a cell that compiles, and then runs once
            return 0.0
        elapsed = time.perf_counter() - self._begun - self._read
        part = _SHARE * 0.5 ** (len(self._reader) / _KEPT)
        return max((self._read - _FREE) / part - elapsed, 0.0) if self._read > _FREE else 0.0

    def _resume(self, gap: bool) -> None:
        """Begin a window. `gap`: the run went on since the last one."""
        if gap:
            self.gap += time.perf_counter() - self._changed
            if self._paused < 0:
                self._paused = len(self.windows)
        try:
            self._start()
        except RuntimeError:
            self.failed = "the code being profiled started JAX's profiler itself"

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # one event per Python function call would hide all others
        options.host_tracer_level = 2
        jax.profiler.start_trace(self._folder.name, profiler_options=options)
        self.recording = True
        if (
            threading.get_ident() == self._thread
        ):  # else it stays the lane that it was in the window before
            with jax.profiler.TraceAnnotation(CALLER):
                pass
        self._started, self._size = self._launches(), _memory()
        if self._run is not None:
            self._run = self._run[0], time.time_ns()
        self._due = time.perf_counter() + self._length

    def _close(self) -> None:
        """Note the part of the current run that ends here."""
        if self.recording and self._run is not None:
            number, start = self._run
            self._open.append((number, start, time.time_ns()))

    def _halt(self) -> None:
        """Stop the profiler; what it wrote is read later."""
        if not self.recording:
            return
        self._close()
        self.recording = False
        self._changed = time.perf_counter()
        try:
            self._data = stop_profiler(self._folder.name)
        except RuntimeError:
            self.failed = "the profiler was stopped by the code being profiled"

    def _stop(self) -> None:
        """Stop the profiler, and read what it wrote."""
        started = time.perf_counter()
        with compiling.phase(f"part {len(self.windows) + 1}", "profile"):
            self._halt()
            if self._data is None:
                return
            data, self._data = self._data, None
            start = self.windows[-1].end if self.windows else 0
            window = self._reader.read(jax.profiler.ProfileData.from_serialized_xspace(data), start)
        zero = window.zero
        spans = [Span(n, start + max(a - zero, 0), start + b - zero) for n, a, b in self._open]
        end = max([window.end, *(span.end for span in spans)])
        length = (end - start) / 1e9
        self.windows.append(ProfileWindow(zero, start, end, self._started))
        self._spans += spans
        self._open = []
        self._length = min(_LONGEST, max(0.1, _EVENTS * length / max(window.events, 1)))
        self._read += time.perf_counter() - started
        if (
            threading.get_ident() == self._thread
        ):  # the run is stopped here; in another thread it would continue without a window
            self._changed = time.perf_counter()

    def _guard(self) -> None:
        """End and begin windows while there are no launches. A compilation is not interrupted."""
        while not self._ended.wait(0.5):
            if time.perf_counter() < self._due + 1 or self._run is None or self.failed:
                continue
            if self._thread in compiling.phases:
                continue
            if self.recording and _memory() - self._size < _GROWTH:
                continue
            if self._lock.acquire(blocking=False):
                try:
                    if not self._ended.is_set():
                        self._turn()
                finally:
                    self._lock.release()


def _memory() -> int:
    """The memory of this process in bytes; 0 if the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0
