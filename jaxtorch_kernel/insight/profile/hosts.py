"""What the calling thread did during the profile: compile, launch, transfer data, wait, or run Python.

The events of a thread overlap: a launch waits, a transfer launches. Each moment counts for the first activity that
applies, in this order: compilation, waiting, transfer, launch. The rest of a run is Python, both user code and torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .record import WAITING, Recording

Spans = list[tuple[int, int]]

_WAITING = re.compile(
    rf"^({re.escape(WAITING)}|jaxtorch: wait.*|BlockHostUntilReady|PyArray_BlockUntilReady)"
)
_TRANSFER = re.compile(
    r"^(jaxtorch: transfer|shard_args|DevicePut|batched_copy|BatchedCopy|.*ToLiteral|.*FromHost|.*CopyRaw|H2D|D2H)"
)
_LAUNCH = re.compile(
    r"^(PjitFunction|ExecuteReplicated|CommonPjRtLoadedExecutable|ParseArguments|PjRt.*Execute)"
)


@dataclass(frozen=True)
class Host:
    """The nanoseconds of one run: those of the calling thread by activity, and those in which the device was busy."""

    compile: float
    waiting: float
    transfer: float
    dispatch: float
    python: float
    device_busy: float


def host_time(recording: Recording) -> Host:
    """The time of the calling thread by activity."""
    events, runs = recording.events, list(recording.runs)
    repeat = max(1, len(runs))
    thread_events = events.select((events.lane == recording.lane) & ~events.on_device)
    ends = thread_events.start + thread_events.duration

    def spans(pattern: re.Pattern[str]) -> Spans:
        numbers = [i for i, name in enumerate(events.names) if pattern.match(name)]
        rows = np.flatnonzero(np.isin(thread_events.name, numbers))
        return list(zip(thread_events.start[rows].tolist(), ends[rows].tolist(), strict=True))

    activities = [
        [(c.start, c.end) for c in recording.compilations],
        spans(_WAITING),
        spans(_TRANSFER),
        spans(_LAUNCH),
    ]
    covered: Spans = []
    times = []
    for activity in activities:
        before = _length(covered)
        covered = _union([*covered, *_within(activity, runs)])
        times.append((_length(covered) - before) / repeat)
    device = events.select(events.on_device)
    busy = _union(
        zip(device.start.tolist(), (device.start + device.duration).tolist(), strict=True)
    )
    compiling, waiting, moving, launching = times
    return Host(
        compiling,
        waiting,
        moving,
        launching,
        python=(_length(_union(runs)) - _length(covered)) / repeat,
        device_busy=_length(_within(busy, runs)) / repeat,
    )


def _union(spans: Iterable[tuple[int, int]]) -> Spans:
    """The union of spans, as disjoint spans.

    Example:
        >>> _union([(5, 9), (0, 2), (1, 3), (9, 10)])
        [(0, 3), (5, 10)]
    """
    union: Spans = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        elif end > start:
            union.append((start, end))
    return union


def _within(spans: Iterable[tuple[int, int]], bounds: Spans) -> Spans:
    """The intersection of the spans with the bounds, which do not overlap."""
    return [
        (max(start, low), min(end, high))
        for start, end in spans
        for low, high in bounds
        if start < high and end > low
    ]


def _length(spans: Spans) -> int:
    return sum(end - start for start, end in spans)
