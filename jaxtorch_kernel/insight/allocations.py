"""The memory of a piece of code over time: what tensors of at least 32 KiB hold, and the largest of them at the peak.

While the code runs, the class of large buffers reports each that is made or freed (`storage/buffer.py`). The reports go
to a log, because they come from every thread and in the middle of garbage collection. The log is folded into a
timeline now and then, so that a recording of hours stays small.

Intermediate values within a captured program have no buffers of ours: their size is read from the program.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..device.streams import synchronize
from ..programs.site import site_of
from ..storage.buffer import LARGE, Buffer, Origin, Spec, usage, watch
from .memory import device_buffers, named_arrays
from .programs import Location, ProgramInfo, location_of, programs

_FOLD = 20_000  # reports
_MOST_POINTS = 400
_MOST_HELD = 50


@dataclass(frozen=True)
class Held:
    """A tensor's memory at the peak.

    Attributes:
        made, freed: seconds after the start; None if it existed before, or still exists.
        location: the line that requested it; None if unknown.
        made_by: the operator or function that computed it; "" if unknown.
        name: its path from a variable when the code has run; None if it has none.
    """

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    location: Location | None
    made_by: str
    name: str | None
    made: float | None
    freed: float | None


@dataclass(frozen=True)
class Timeline:
    """The memory of a piece of code over time.

    Attributes:
        points: (seconds after the start, bytes held from then on).
        peak, peak_at: the most bytes, and when.
        held: the largest at the peak, the largest first; `others` of them are left out.
        programs: captured programs that ran, with the bytes of the intermediate values of a run, the largest first.
        error: what the code raised.
    """

    seconds: float
    points: tuple[tuple[float, int], ...]
    before: int
    peak: int
    peak_at: float
    after: int
    held: tuple[Held, ...]
    others: int
    programs: tuple[tuple[ProgramInfo, int], ...]
    error: BaseException | None


def recorded(run: Callable[[], object], namespace: Mapping[str, object]) -> Timeline:
    """Run code and record its memory.

    Args:
        run: the code. An exception ends it, and is part of the result.
        namespace: the variables to search for names of tensors.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.allocations import recorded
        >>> def code():
        ...     x = torch.zeros(300, 300, device="jax")
        ...     return (x + 1).sum()
        >>> timeline = recorded(code, {})
        >>> timeline.peak - timeline.before, timeline.after - timeline.before
        (720000, 0)
    """
    synchronize()
    calls = {p.id: p.calls for p in programs()}
    log = _Log()
    error: BaseException | None = None
    watch(log)
    try:
        run()
        synchronize()
    except BaseException as raised:
        error = raised
    finally:
        watch(None)
    seconds = time.perf_counter() - log.started
    log.fold()
    ran = [p for p in programs() if p.kind != "eager" and p.calls > calls.get(p.id, 0)]
    needs = [(p, memory.temporary) for p in ran if (memory := p.memory()) and memory.temporary]
    entries = sorted(log.at_peak.values(), key=lambda e: -e.nbytes)
    names = {key: path for key, (path, _) in named_arrays(namespace).items()}
    return Timeline(
        seconds,
        tuple(log.points),
        log.before,
        log.peak,
        log.peak_at,
        log.total,
        tuple(_held(entry, names) for entry in entries[:_MOST_HELD]),
        len(entries[_MOST_HELD:]),
        tuple(sorted(needs, key=lambda need: -need[1])),
        error,
    )


@dataclass(slots=True, eq=False)
class _Entry:
    """A large buffer. Its data stays here when it is freed."""

    nbytes: int
    made: float | None
    reference: weakref.ref[Buffer]
    spec: Spec
    origin: Origin | None = None
    freed: float | None = None


@dataclass(slots=True)
class _Freed:
    moment: float
    key: int
    origin: Origin | None


@dataclass
class _Log:
    """The reports of a recording, and the totals computed from them.

    Attributes:
        started: when the recording began.
        total: bytes held at the end of the folded part.
        at_peak: the buffers held at the peak, by `id`.
    """

    before: int = field(default_factory=lambda: usage.allocated)

    def __post_init__(self) -> None:
        self.total = self.peak = self.before
        self.peak_at = 0.0
        self.points: list[tuple[float, int]] = [(0.0, self.before)]
        large = [b for b in device_buffers() if b.spec.nbytes >= LARGE]
        self._live = {id(b): _entry(b, None) for b in large}
        self.at_peak = dict(self._live)
        self._reports: list[tuple[float, int, _Entry] | _Freed] = []
        self._folding = threading.Lock()
        self.started = time.perf_counter()  # last: finding the buffers can take half a second

    def made(self, buffer: Buffer) -> None:
        moment = time.perf_counter() - self.started
        self._reports.append((moment, id(buffer), _entry(buffer, moment)))
        if len(self._reports) > _FOLD:
            self.fold()

    def freed(self, buffer: Buffer) -> None:
        moment = time.perf_counter() - self.started
        self._reports.append(_Freed(moment, id(buffer), buffer.origin))

    def fold(self) -> None:
        """Add the reports so far to the timeline."""
        if not self._folding.acquire(blocking=False):
            return  # another thread is doing it
        try:
            count = len(self._reports)
            reports = self._reports[:count]
            del self._reports[:count]
            highest = self._highest(reports)
            for i, report in enumerate(reports):
                self._apply(report)
                if i == highest:
                    self.at_peak = dict(self._live)
            self.points = thinned(self.points, _MOST_POINTS)
        finally:
            self._folding.release()

    def _highest(self, reports: list[tuple[float, int, _Entry] | _Freed]) -> int | None:
        """The report with which a new peak is reached; notes the peak."""
        total, highest = self.total, None
        sizes = {key: entry.nbytes for key, entry in self._live.items()}
        for i, report in enumerate(reports):
            if isinstance(report, _Freed):
                total -= sizes.pop(report.key, 0)
                continue
            moment, key, entry = report
            sizes[key] = entry.nbytes
            total += entry.nbytes
            if total > self.peak:
                self.peak, self.peak_at, highest = total, moment, i
        return highest

    def _apply(self, report: tuple[float, int, _Entry] | _Freed) -> None:
        if isinstance(report, _Freed):
            entry = self._live.pop(report.key, None)
            if entry is None:
                return
            entry.freed, entry.origin = report.moment, report.origin
            self.total -= entry.nbytes
            self.points.append((report.moment, self.total))
        else:
            moment, key, entry = report
            self._live[key] = entry
            self.total += entry.nbytes
            self.points.append((moment, self.total))


def thinned(points: list[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    """At most about `most` points, the highest of each stretch of time among them, and the last.

    Example:
        >>> thinned([(0.0, 1), (0.1, 9), (0.2, 2), (1.0, 4)], 2)
        [(0.1, 9), (1.0, 4)]
    """
    if len(points) <= most:
        return points
    step = (points[-1][0] - points[0][0]) / (most - 1) or 1.0
    highest: dict[int, tuple[float, int]] = {}
    for point in points:
        stretch = int((point[0] - points[0][0]) / step)
        if stretch not in highest or point[1] > highest[stretch][1]:
            highest[stretch] = point
    kept = list(highest.values())
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _entry(buffer: Buffer, made: float | None) -> _Entry:
    return _Entry(buffer.spec.nbytes, made, weakref.ref(buffer), buffer.spec)


def _held(entry: _Entry, names: Mapping[int, str]) -> Held:
    buffer = entry.reference()
    origin = entry.origin if buffer is None else buffer.origin
    return Held(
        entry.nbytes,
        entry.spec.shape,
        str(entry.spec.dtype),
        None if origin is None else location_of(site_of(origin)),
        "" if origin is None else str(getattr(origin[0], "name", "")),
        None if buffer is None else names.get(id(buffer.array)),
        entry.made,
        entry.freed,
    )
