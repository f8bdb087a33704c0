"""The cost of one eager call, compared with `jax.jit` of the same operation and with torch on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .harness import Row, compare

SIZE = 64


def rows() -> Iterator[Row]:
    """One row per operation."""
    x, y = (torch.randn(SIZE, SIZE, device="jax") for _ in range(2))
    a, b = (jnp.ones((SIZE, SIZE)) for _ in range(2))
    c, d = (torch.randn(SIZE, SIZE, device="cpu") for _ in range(2))
    w = x.clone().requires_grad_()
    wc = c.clone().requires_grad_()

    def finish() -> None:
        torch.jax.synchronize()

    def row(name: str, ours: Any, theirs: Any, cpu: Any, limit: float = 2.0) -> Row:
        contestants = {"jaxtorch": ours, "jax.jit": theirs, "torch CPU": cpu}
        return compare(name, contestants, finish, limit=limit, against="jax.jit")

    add = jax.jit(lambda p, q: p + q)
    mul = jax.jit(lambda p, q: p * q)
    relu = jax.jit(jax.nn.relu)
    mm = jax.jit(lambda p, q: p @ q)
    index = jax.jit(lambda p, i: p[i] + 1)
    yield row("add", lambda: x + y, lambda: add(a, b), lambda: c + d)
    yield row("mul", lambda: x * y, lambda: mul(a, b), lambda: c * d)
    yield row("relu", lambda: torch.relu(x), lambda: relu(a), lambda: torch.relu(c))
    yield row("mm", lambda: x @ y, lambda: mm(a, b), lambda: c @ d)
    steps = {"ours": 0, "jax": 0, "cpu": 0}

    def turn(key: str) -> int:
        steps[key] = i = (steps[key] + 1) % SIZE
        return i

    yield row(
        "x[i] + 1, changing i",
        lambda: x[turn("ours")] + 1,
        lambda: index(a, turn("jax")),
        lambda: c[turn("cpu")] + 1,
    )
    yield row("add, input requires grad", lambda: w + y, lambda: add(a, b), lambda: wc + d, 2.5)
