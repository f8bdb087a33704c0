"""What our being loaded costs CPU tensors: an add with and without the device registered and in use."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from .harness import Row

PROGRAM = """
import sys, time, torch
if sys.argv[1] == "with":
    torch.ones(1, device="jax")
x, y = torch.ones(64, 64), torch.ones(64, 64)
for _ in range(20000): x + y
best = 1e9
for _ in range(30):
    started = time.perf_counter()
    for _ in range(5000): x + y
    best = min(best, (time.perf_counter() - started) / 5000)
print(best)
"""


def rows() -> Iterator[Row]:
    """One row: the best of 30 loops in each of ten processes, in turn."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(5):
        for key, values in times.items():
            autoload = "1" if key == "with" else "0"
            environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
            out = subprocess.run(
                [sys.executable, "-c", PROGRAM, key],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            values.append(float(out.stdout))
    medians = {k: statistics.median(v) for k, v in times.items()}
    yield Row("CPU add, jaxtorch loaded", medians, 1.03, "without")
