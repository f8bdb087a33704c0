"""Comparisons in one process: the contestants take turns, round by round, and their medians are compared.

A machine that slows down affects both sides of a ratio, so ratios are more reliable than times. No comparison fails:
the `limit` is only printed beside its ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax

Contestant = Callable[[], object]


@dataclass
class Row:
    """One comparison: the median seconds per call of each contestant. The first contestant is jaxtorch."""

    name: str
    seconds: dict[str, float]
    limit: float | None = None
    against: str = ""

    def ratio(self) -> float:
        """The time of the first contestant divided by that of `against`."""
        ours = next(iter(self.seconds.values()))
        return ours / self.seconds[self.against]

    def __str__(self) -> str:
        times = "  ".join(f"{k} {_time(v)}" for k, v in self.seconds.items())
        verdict = ""
        if self.against:
            verdict = f"  ratio to {self.against} {self.ratio():.2f}"
            if self.limit is not None:
                missed = ", missed" if self.ratio() > self.limit else ""
                verdict += f" (goal: at most {self.limit}{missed})"
        return f"{self.name:28} {times}{verdict}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2f} us"
    return f"{seconds * 1e3:.2f} ms"


def compare(
    name: str,
    contestants: dict[str, Contestant],
    finish: Callable[[], object],
    calls: int = 1000,
    rounds: int = 25,
    limit: float | None = None,
    against: str = "",
    prepare: Callable[[str], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Row:
    """Time `calls` calls of each contestant in turn, in each of `rounds` rounds. `finish` waits for the device.

    `prepare` is called with a contestant's name before its turn, and is not timed. `time.process_time` as the clock
    counts the work of all threads, which several simulated devices need on few cores.
    """
    for contestant in contestants.values():
        for _ in range(max(2, calls // 20)):
            contestant()
        finish()
    times: dict[str, list[float]] = {key: [] for key in contestants}
    for _ in range(rounds):
        for key, contestant in contestants.items():
            if prepare is not None:
                prepare(key)
            started = clock()
            for _ in range(calls):
                result = contestant()
            # `finish` may wait for tensors only. What an array's program still does would count as the next one's work.
            jax.block_until_ready(result)
            finish()
            times[key].append((clock() - started) / calls)
    return Row(name, {k: statistics.median(v) for k, v in times.items()}, limit, against)
