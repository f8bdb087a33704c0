"""The cost of an installed jaxtorch to programs that do not use it: at `import torch`, and in an add of CPU tensors."""

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


ENTRY = """
import time, torch
torch.__spec__._initializing = True  # as inside `import torch`
started = time.process_time()
import jaxtorch.autoload
jaxtorch.autoload.register()
print(time.process_time() - started)
"""


def _run(program: str, autoload: str, *arguments: str) -> float:
    out = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(out.stdout)


def rows() -> Iterator[Row]:
    """Medians of five processes each. The processes that add take turns, and each reports its best of 30 loops."""
    entry = [_run(ENTRY, "0") for _ in range(5)]
    yield Row("entry point (goal: 10 ms)", {"in import torch": statistics.median(entry)})
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(5):
        for key, values in times.items():
            values.append(_run(PROGRAM, "1" if key == "with" else "0", key))
    medians = {k: statistics.median(v) for k, v in times.items()}
    yield Row("CPU add, jaxtorch loaded", medians, 1.03, "without")
