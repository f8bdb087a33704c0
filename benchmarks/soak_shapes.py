"""Ten thousand shapes of one eager operator: programs must stay within `config.program_memory`.

The soak fails if a value is wrong, if the process takes 2 GiB, or if it comes near Linux's limit of memory maps.
"""

from __future__ import annotations

import os

import torch

import jaxtorch
from jaxtorch.programs import program_cache, stats

from .soak import Progress

SHAPES = 10_000
MOST_BYTES = 2 << 30
MOST_MAPS = 60_000  # of 65530


def run(scale: float = 1.0) -> None:
    """Run the soak. `scale` is the fraction of the ten thousand shapes."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    count = int(SHAPES * scale)
    progress = Progress("shapes", count)
    results = []  # the latest thousand: a live tensor must not keep its program alive
    before = progress.settled()
    for n in range(1, count + 1):
        x = torch.full((n,), 1.5, device="cpu").to("jax")
        y = x + x
        results.append(y)
        del results[:-1000]
        if n % 100 == 0:
            assert torch.equal(y.cpu(), torch.full((n,), 3.0)), f"a wrong value for size {n}"
            limit = jaxtorch.config.program_memory
            assert limit is None or program_cache.total_bytes() <= limit
        progress.at(n)
    grown = progress.settled() - before
    print(
        f"{grown / count / 1e6:.3f} MB for each shape, {stats.evicted} programs evicted; at most "
        f"{progress.rss >> 20} MiB and {progress.maps} memory maps"
    )
    assert progress.rss < MOST_BYTES, f"the process took {progress.rss >> 20} MiB"
    assert progress.maps < MOST_MAPS, f"there were {progress.maps} memory maps"
