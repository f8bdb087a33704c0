"""The activities of the calling thread during the profile: compile, launch, transfer data, wait, or run Python.

The events of a thread overlap: a launch waits, a transfer launches. Each moment counts for the first activity that
applies, in this order: compilation, waiting, transfer, launch. The rest of a run is Python, both user code and torch.

torch runs a backward pass in a thread of its own, and the calling thread waits for it. So what that thread does counts
as if the calling thread did it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .events import Events
from .record import Recording
from .sampling import WAITING

Spans = np.ndarray  # of shape (n, 2): start and end

_WAITING = re.compile(
    rf"^({re.escape(WAITING)}|jaxtorch: wait.*|BlockHostUntilReady|PyArray_BlockUntilReady)"
)
_TRANSFER = re.compile(
    r"^(jaxtorch: transfer|shard_args|DevicePut|batched_copy|BatchedCopy|.*ToLiteral|.*FromHost|.*CopyRaw|H2D|D2H)"
)
_LAUNCH = re.compile(
    r"^(PjitFunction|ExecuteReplicated|CommonPjRtLoadedExecutable|ParseArguments|PjRt.*Execute)"
)


# What marks an activity, except for compilation; the first that applies counts.
ACTIVITIES = (("waiting", _WAITING), ("transfers", _TRANSFER), ("launching", _LAUNCH))


@dataclass(frozen=True)
class HostTime:
    """The nanoseconds of one run: those of the calling thread by activity, and those in which the device was busy."""

    compile: float
    waiting: float
    transfer: float
    dispatch: float
    python: float
    device_busy: float


def host_time(recording: Recording) -> HostTime:
    """The time of the calling thread by activity."""
    events = recording.events
    bounds = np.array([(s.start, s.end) for s in recording.spans], np.int64).reshape(-1, 2)
    weight = np.array([s.weight for s in recording.spans]) / max(1, recording.count)
    lanes = [i for i, lane in enumerate(events.lanes) if i == recording.lane or lane.backward]
    thread_events = events.select(np.isin(events.lane, lanes) & ~events.on_device)

    def spans(pattern: re.Pattern[str]) -> Spans:
        numbers = [i for i, name in enumerate(events.names) if pattern.match(name)]
        return spans_of(thread_events.select(np.isin(thread_events.name, numbers)))

    compiled = [(c.start, c.end) for c in recording.compilations]
    activities = [
        np.array(compiled, np.int64).reshape(-1, 2),
        *(spans(pattern) for _, pattern in ACTIVITIES),
    ]
    covered, before = union(bounds[:0]), 0.0
    times = []
    for activity in activities:
        covered = union(np.concatenate([covered, activity]))
        now = float(covered_time(covered, bounds) @ weight)
        times.append(now - before)
        before = now
    compiling, waiting, moving, launching = times
    busy = union(spans_of(events.select(events.on_device)))
    return HostTime(
        compiling,
        waiting,
        moving,
        launching,
        python=float((bounds[:, 1] - bounds[:, 0]) @ weight) - before,
        device_busy=float(covered_time(busy, bounds) @ weight),
    )


def spans_of(events: Events) -> Spans:
    """(start, end) of each event."""
    return np.stack([events.start, events.start + events.duration], 1)


def union(spans: Spans) -> Spans:
    """The union of spans, as disjoint spans in order.

    Example:
        >>> union(np.array([(5, 9), (0, 2), (1, 3), (9, 10), (4, 4)])).tolist()
        [[0, 3], [5, 10]]
    """
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > reached[:-1])
    return np.stack([spans[first, 0], reached[np.append(first[1:], True)]], 1)


def covered_time(covered: Spans, bounds: Spans) -> np.ndarray:
    """For each of the bounds, how much of it the disjoint spans cover.

    Example:
        >>> covered_time(np.array([(0, 3), (5, 10)]), np.array([(2, 6), (7, 20)])).tolist()
        [2, 3]
    """
    if not len(covered):
        return np.zeros(len(bounds), np.int64)
    total = np.append(0, np.cumsum(covered[:, 1] - covered[:, 0]))

    def until(time: np.ndarray) -> np.ndarray:
        nth = np.searchsorted(covered[:, 0], time, side="right")
        beyond = np.maximum(covered[nth - 1, 1] - time, 0)
        return np.where(nth > 0, total[nth] - beyond, 0)

    return until(bounds[:, 1]) - until(bounds[:, 0])
