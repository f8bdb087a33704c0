"""The time of a piece of code: its first run, with the programs compiled for it, and its later runs.

Work on the device is asynchronous, so every measurement begins and ends with `synchronize`. The later runs are measured
as `timeit` does: in loops that are long enough for the clock, several times over. They begin when a run has compiled
nothing, because the first calls of a step may compile more than one program, for example if its code creates state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..device.streams import synchronize
from .programs import ProgramInfo, programs

LOOP_SECONDS = 0.2  # a loop is at least this long
_LOOPS = [step * 10**i for i in range(4) for step in (1, 2, 5)]
MEASUREMENTS = 7
_MOST_WARMUPS = 5


@dataclass(frozen=True)
class Loops:
    """Measurements of repeated runs.

    Attributes:
        loops: runs in each measurement.
        totals: the seconds of each measurement.
    """

    loops: int
    totals: tuple[float, ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        """The seconds of one run, by measurement."""
        return tuple(total / self.loops for total in self.totals)

    @property
    def mean(self) -> float:
        """The mean time of a run."""
        return statistics.fmean(self.seconds)

    @property
    def deviation(self) -> float:
        """The standard deviation of the measurements."""
        return statistics.pstdev(self.seconds)


@dataclass(frozen=True)
class Timing:
    """The time of a piece of code.

    Attributes:
        cold: the seconds of the first run, compilation included.
        compiled: the programs that the first run compiled.
        later: the programs that the runs between the first and the measured ones compiled.
        warmups: the number of these runs.
        steady: whether a run has compiled nothing. If not, the measured runs compile, too.
        warm: the measured runs.
    """

    cold: float
    compiled: tuple[ProgramInfo, ...]
    later: tuple[ProgramInfo, ...]
    warmups: int
    steady: bool
    warm: Loops


def timed(run: Callable[[], object], measurements: int = MEASUREMENTS) -> Timing:
    """Time code without arguments. It runs at least `measurements + 2` times, with all its effects.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.timing import timed
        >>> x = torch.ones(37, 41, device="jax")
        >>> timing = timed(lambda: x.erfinv(), measurements=2)
        >>> [p.name for p in timing.compiled], timing.later, len(timing.warm.totals)
        (['erfinv.default'], (), 2)
    """
    newest = _newest()
    cold = _measured(run, 1)
    compiled = _since(newest)
    warmups, steady = 0, False
    after_cold = _newest()
    while not steady and warmups < _MOST_WARMUPS:
        before = _newest()
        _measured(run, 1)
        warmups += 1
        steady = not _since(before)
    return Timing(cold, compiled, _since(after_cold), warmups, steady, repeated(run, measurements))


def repeated(run: Callable[[], object], measurements: int = MEASUREMENTS) -> Loops:
    """Measure repeated runs, as `timeit` does."""
    loops = next(n for n in _LOOPS if n == _LOOPS[-1] or _measured(run, n) >= LOOP_SECONDS)
    return Loops(loops, tuple(_measured(run, loops) for _ in range(measurements)))


def _measured(run: Callable[[], object], loops: int) -> float:
    synchronize()
    started = time.perf_counter()
    for _ in range(loops):
        run()
    synchronize()
    return time.perf_counter() - started


def _newest() -> int:
    return max((p.id for p in programs()), default=0)


def _since(newest: int) -> tuple[ProgramInfo, ...]:
    return tuple(p for p in programs() if p.id > newest and p.kind != "engine")
