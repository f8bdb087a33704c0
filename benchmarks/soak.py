"""`make soak`: long runs that check for growth, hangs and lost state. Runs all of them, or those that are named.

python -m benchmarks.soak [shapes|steps|interrupts|torch_call ...] [--scale 0.1]
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import time

import psutil

NAMES = ("shapes", "steps", "interrupts", "torch_call")


class Progress:
    """One line with the progress of a run and the memory of the process, written at most twice a second."""

    def __init__(self, name: str, total: int):
        self.name, self.total = name, total
        self.started = self._said = time.monotonic()
        self.process = psutil.Process()
        self.rss = self.maps = 0  # the maxima so far

    def at(self, done: int) -> None:
        """Report that `done` steps are finished."""
        now = time.monotonic()
        if now - self._said < 0.5 and done < self.total:
            return
        self._said = now
        rss, maps = self.process.memory_info().rss, memory_maps()
        self.rss, self.maps = max(self.rss, rss), max(self.maps, maps)
        print(
            f"\r{self.name}: {done} of {self.total}, {now - self.started:.0f} s, {rss >> 20} MiB, {maps} memory maps ",
            end="" if done < self.total else "\n",
            flush=True,
        )

    def settled(self) -> int:
        """Bytes of the process after a garbage collection."""
        gc.collect()
        return int(self.process.memory_info().rss)


def memory_maps() -> int:
    """The number of memory maps of the process, of which Linux allows 65530; 0 on other systems."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the full counts, as 0.1")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no soak of that name: {', '.join(sorted(unknown))}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    faulthandler.enable()
    from importlib import import_module

    for name in arguments.names or NAMES:
        print(f"# {name}", flush=True)
        import_module(f"benchmarks.soak_{name}").run(arguments.scale)


if __name__ == "__main__":
    main()
