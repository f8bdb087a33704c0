"""Streams and events of `torch.jax`.

XLA orders computations by their data: an operator waits for its inputs, whichever thread launched it. So there is
one stream, and waiting for another stream or event is never needed for a correct result. An event stores which
arrays were still being computed when it was recorded. For events with timing, one watcher thread waits for these
arrays, in the order of recording, and notes the time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from typing import Any

import torch

from ..storage import pending
from ..storage.placement import Device
from . import fork


def _computing() -> list[Any]:
    """The live arrays of this process that are not computed yet."""
    import jax

    return [a for a in jax.live_arrays() if not a.is_deleted() and not a.is_ready()]


def _pending() -> list[Any]:
    """As `_computing`, after deferred calls were launched."""
    pending.flush()
    return _computing()


def _wait(array: Any) -> None:
    """Wait for one array. Ignore one that was donated meanwhile, because it can no longer be waited for."""
    from ..storage import transfer

    try:
        transfer.wait(array)
    except RuntimeError:
        if not array.is_deleted():
            raise


def synchronize(device: Device = None) -> None:
    """Wait until the device has finished all of its work.

    Raises:
        RuntimeError: a computation failed on the device; the message is XLA's.
        Exception: captured code received a value that `config(check="indices")` rejects: the CPU's error.
    """
    import jax

    from ..dispatch.value_checks import raise_reported

    for array in _pending():
        _wait(array)
    jax.effects_barrier()
    raise_reported()


def finish() -> None:
    """At the end of the process, wait for what still runs; Ctrl-C ends the wait.

    C++ destroys its globals then, and a program that XLA's threads still run would read them: a segmentation fault. JAX
    waits for them only if nothing holds its arrays any more, but tensors in C++ may live on. Beside other processes it
    does not wait: a collective never ends if one of them is gone.
    """
    import jax

    if fork.forked or jax.process_count() > 1:
        return
    with contextlib.suppress(Exception, KeyboardInterrupt):
        for array in _computing():
            _wait(array)


class _Watcher:
    """The thread that waits for recorded events. Started by the first timed record."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, event: Event) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="jax-events", daemon=True)
                self._thread.start()
        self._queue.put(event)

    def _run(self) -> None:
        while True:
            event = self._queue.get()
            event._finish()
            del event


_watcher = _Watcher()


class Event(torch.Event):
    """A point in the device's work, like `torch.cuda.Event`.

    Args:
        enable_timing: whether `elapsed_time` may be called.
        blocking: accepted for compatibility; waiting always blocks.
        interprocess: accepted for compatibility; True is not supported.
    """

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        if interprocess:
            raise RuntimeError(
                "jax events cannot be shared between processes: interprocess=True is not supported"
            )
        return super().__new__(cls, device="jax", enable_timing=enable_timing)

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ):
        self._timed = enable_timing
        self._arrays: list[weakref.ref[Any]] = []
        self._done = threading.Event()
        self._done.set()
        self._time: float | None = None
        self._error: Exception | None = None

    def record(self, stream: Any = None) -> None:
        """Mark all work given to the device so far."""
        # Weak: an event must not keep memory alive, and must not prevent an in-place operator from donating it.
        self._arrays = [weakref.ref(a) for a in _pending()]
        self._error = None
        self._time = None
        self._done.clear()
        if self._timed:
            _watcher.watch(self)

    def _finish(self) -> None:
        for reference in self._arrays:
            array = reference()
            if array is not None:
                try:
                    _wait(array)
                except Exception as error:
                    self._error = error
        self._time = time.perf_counter()
        self._arrays = []
        self._done.set()

    def synchronize(self) -> None:
        """Wait for the marked work.

        Raises:
            RuntimeError: that work failed on the device.
        """
        if self._timed and not fork.forked:  # a forked process has no watcher
            self._done.wait()
        elif not self._done.is_set():
            self._finish()
        if self._error is not None:
            raise self._error

    def query(self) -> bool:
        """Whether the marked work is done."""
        if self._done.is_set():
            return True
        if self._timed:
            return False
        arrays = [a for a in (r() for r in self._arrays) if a is not None]
        return all(a.is_deleted() or a.is_ready() for a in arrays)

    def wait(self, stream: Any = None) -> None:
        """Make a stream wait for this event. Does nothing: operators wait for their inputs."""

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to `end_event`; waits for both.

        Raises:
            RuntimeError: one of them was created without `enable_timing=True`, or never recorded.
        """
        times = []
        for event in (self, event_of(end_event)):
            if not event._timed:
                raise RuntimeError("both events must be created with Event(enable_timing=True)")
            event.synchronize()
            if event._time is None:
                raise RuntimeError("both events must be recorded before elapsed_time is called")
            times.append(event._time)
        return (times[1] - times[0]) * 1e3

    def __repr__(self) -> str:
        return f"<torch.jax.Event {'done' if self.query() else 'pending'}>"


_stand_ins: weakref.WeakKeyDictionary[torch.Event, Event] = weakref.WeakKeyDictionary()


def event_of(event: torch.Event) -> Event:
    """The event itself; for one of torch's own class, its `torch.jax.Event` (`builtin_events.py`)."""
    if isinstance(event, Event):
        return event
    known = _stand_ins.get(event)
    if known is None:
        timed = "event_flag=1" in torch.Event.__repr__(event)  # nothing else tells
        known = _stand_ins[event] = Event(enable_timing=timed)
    return known


class Stream(torch.Stream):
    """The device's only stream. Any number of objects may represent it."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        return super().__new__(cls, device="jax", priority=0)

    def __init__(self, device: Device = None, priority: int = 0, **kwargs: Any):
        pass

    def synchronize(self) -> None:
        """Same as `torch.jax.synchronize`."""
        synchronize()

    def query(self) -> bool:
        """Whether all work given to the device so far is done."""
        return not _pending()

    def record_event(self, event: Any = None) -> Event:
        """Record `event`, or a new event."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Does nothing: operators wait for their inputs."""

    def wait_stream(self, stream: Any) -> None:
        """Does nothing: there is only one stream."""


def default_stream(device: Device = None) -> Stream:
    """The device's stream."""
    return Stream()


current_stream = default_stream


def set_stream(stream: torch.Stream) -> None:
    """Does nothing: there is only one stream."""


class StreamContext:
    """A scope of a stream: `with torch.jax.stream(s): ...` Does nothing: there is only one stream."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


def stream(stream: torch.Stream | None) -> StreamContext:
    """Open a scope of that stream. Does nothing: there is only one stream."""
    return StreamContext(stream)


__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "synchronize",
]
