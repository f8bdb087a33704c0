"""The cost of one eager call, compared with `jax.jit` of the same operation and with torch on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .harness import Row, compare
from .models import GPT

SIZE = 64


VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "view": lambda x: x.view(SIZE * SIZE),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "select": lambda x: x[3],
    "slice": lambda x: x[2:9],
    "unsqueeze": lambda x: x.unsqueeze(0),
    "expand": lambda x: x[:1].expand(SIZE, SIZE),
    "permute": lambda x: x.permute(1, 0),
    "detach": lambda x: x.detach(),
    "as_strided": lambda x: x.as_strided((8, 8), (8, 1)),
    "split": lambda x: x.split(SIZE // 2),
    "unbind": lambda x: x[:2].unbind(0),
}
# How many views each of these calls makes: a goal is for one.
MADE = {"expand": 2, "split": 2, "unbind": 3}


def rows() -> Iterator[Row | str]:
    """One row per operation, one per view, and the calls of a transformer's step."""
    threads = torch.get_num_threads()
    # Threads of OpenMP spin for a while after a product on the CPU, which would count as work of the next contestant.
    torch.set_num_threads(1)
    try:
        yield from operations()
        yield from views()
        yield calls_of_a_step()
    finally:
        torch.set_num_threads(threads)


def views() -> Iterator[Row]:
    """Views, in units of the `jax.jit` call of an add."""
    x, c = torch.randn(SIZE, SIZE, device="jax"), torch.randn(SIZE, SIZE, device="cpu")
    a = jnp.ones((SIZE, SIZE))
    add = jax.jit(lambda p, q: p + q)
    for name, view in VIEWS.items():
        contestants = {
            "jaxtorch": partial(view, x),
            "jax.jit of an add": lambda: add(a, a),
            "torch CPU": partial(view, c),
        }
        count = MADE.get(name, 1)
        yield compare(
            f"{name}, {count} views" if count > 1 else name,
            contestants,
            torch.jax.synchronize,
            limit=round(0.6 * count, 1),
            against="jax.jit of an add",
            clock=time.process_time,
        )


def calls_of_a_step() -> str:
    """How many views forward and backward of a GPT of 12 layers make, by torch's profiler."""
    model = GPT(12, 32, 2, 8).to("jax")
    x, y = torch.randint(256, (2, 1, 8), device="jax")
    model(x, y).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(x, y).backward()
    names = {f"aten::{name}" for name in (*VIEWS, "squeeze", "alias", "_unsafe_view", "reshape")}
    count = sum(event.count for event in profile.key_averages() if event.key in names)
    missed = ", missed" if count > 250 else ""
    return f"{'step of a GPT, 12 layers':28} {count} calls of views (goal: at most 250{missed})"


def operations() -> Iterator[Row]:
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
        return compare(
            name, contestants, finish, limit=limit, against="jax.jit", clock=time.process_time
        )

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
        3.0,
    )
    yield row("add, input requires grad", lambda: w + y, lambda: add(a, b), lambda: wc + d, 2.5)
