"""Thirty thousand training steps, eager, under `pure` and under `jit` in turn, with random numbers and views.

After the first tenth, the steps should compile and keep nothing new. The soak fails if the process grows by more than
64 MiB from then on, if the number of live arrays or of programs grows by more than a fixed margin, or if a step has no
finite loss.
"""

from __future__ import annotations

import math

import jax
import torch

import jaxtorch
from jaxtorch.programs import stats

from .soak import Progress

STEPS = 30_000
GROWTH = 64 << 20
ARRAYS = 640  # numbers are kept as operands: the latest 512, and up to 16 of each program


def run(scale: float = 1.0) -> None:
    """Run the soak. `scale` is the fraction of the thirty thousand steps."""
    count = int(STEPS * scale)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
    ).to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    captured = jaxtorch.pure(model)

    def loss_of(forward: torch.nn.Module) -> torch.Tensor:
        x = torch.randn(8, 16, device="jax")
        y = torch.randint(4, (8,), device="jax")
        return torch.nn.functional.cross_entropy(forward(x), y)

    def stepped(forward: torch.nn.Module) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(forward)
        loss.backward()
        optimizer.step()
        return loss

    jitted = jaxtorch.jit(lambda: stepped(model))
    kinds = (lambda: stepped(model), lambda: stepped(captured), jitted)
    ring = torch.zeros(64, device="jax")
    progress = Progress("steps", count)
    base: tuple[int, int, int] | None = None
    for step in range(1, count + 1):
        loss = kinds[step % len(kinds)]()
        ring[step % 64] = loss.detach()  # a view whose start changes
        if step % 50 == 0:
            assert math.isfinite(ring.mean().item()), f"step {step} has no finite loss"
        if base is None and step >= max(count // 10, 300):
            base = progress.settled(), len(jax.live_arrays()), stats.compile_count()
        progress.at(step)
    assert base is not None
    rss, arrays, compiled = progress.settled(), len(jax.live_arrays()), stats.compile_count()
    print(
        f"from {base[0] >> 20} to {rss >> 20} MiB, {base[1]} to {arrays} arrays, {base[2]} to {compiled} programs"
    )
    assert rss <= base[0] + GROWTH, f"memory grew from {base[0] >> 20} to {rss >> 20} MiB"
    assert arrays <= base[1] + ARRAYS, f"live arrays grew from {base[1]} to {arrays}"
    assert compiled <= base[2] + 8, f"programs grew from {base[2]} to {compiled}"
