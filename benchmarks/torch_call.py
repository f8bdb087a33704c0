"""Torch called from JAX: `torch2jax` beside wrap-torch2jax, where that is installed, and `jax.pure_callback`.

The peer compiles C++ at its first import, and switches JAX to its older partitioner for the whole process. It is no
dependency: `pip install --no-deps --target FOLDER wrap-torch2jax`, and FOLDER on PYTHONPATH.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jaxtorch

from .harness import Row, compare


def _peer() -> Any:
    for name in ("wrap_torch2jax", "torch2jax"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    print("wrap-torch2jax is not installed: no ratios to it", file=sys.stderr)
    return None


def _add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def _squares(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a - b) ** 2).mean()


def _by_pure_callback(like: jax.Array) -> Callable[..., Any]:
    def on_host(a: Any, b: Any) -> Any:
        return (torch.from_numpy(np.asarray(a)) + torch.from_numpy(np.asarray(b))).numpy()

    shape = jax.ShapeDtypeStruct(like.shape, like.dtype)
    return lambda a, b: jax.pure_callback(on_host, shape, a, b)


def _contest(
    name: str,
    functions: dict[str, Callable[..., Any]],
    arguments: tuple[jax.Array, ...],
    goals: dict[str, float],
    calls: int,
    rounds: int = 40,
) -> Iterator[Row]:
    """One measurement, and a row for each goal. Each call is waited for: what is timed is the way there and back."""
    contestants = {
        key: lambda f=jax.jit(f): jax.block_until_ready(f(*arguments))
        for key, f in functions.items()
    }
    row = compare(name, contestants, lambda: None, calls=calls, rounds=rounds)
    for against, limit in goals.items():
        if against in row.seconds:
            yield Row(name, row.seconds, limit, against)


def rows() -> Iterator[Row]:
    """The goals are ratios: to the peer, and to what JAX offers itself."""
    peer = _peer()

    def contestants(ours: Any, wrap: str, fn: Any, examples: Any) -> dict[str, Any]:
        theirs = {"peer": getattr(peer, wrap)(fn, *examples)} if peer else {}
        return {"torch2jax": ours, **theirs}

    add = jaxtorch.torch2jax(_add)
    for shape, goals, calls in [
        ((8, 8), {"peer": 1.3, "pure_callback": 0.3}, 500),
        ((4096, 1024), {"peer": 1.05}, 5),
    ]:
        x = jnp.ones(shape)
        functions = contestants(add, "torch2jax", _add, 2 * [torch.ones(shape)])
        functions |= {"pure_callback": _by_pure_callback(x), "jit alone": jnp.add}
        yield from _contest(f"add {shape[0]}x{shape[1]}", functions, (x, x + 1), goals, calls)

    n = 64
    losses = contestants(
        jaxtorch.torch2jax(_squares), "torch2jax_with_vjp", _squares, 2 * [torch.ones(n)]
    )
    gradients = {key: jax.value_and_grad(f) for key, f in losses.items()}
    x = jnp.linspace(-1, 1, n)
    yield from _contest("value_and_grad", gradients, (x, x + 1), {"peer": 0.8}, 200)

    batch = jnp.ones((64, 8, 8))
    adds = contestants(add, "torch2jax", _add, 2 * [torch.ones(8, 8)])
    batches = {key: jax.vmap(f) for key, f in adds.items()}
    yield from _contest("vmap over 64", batches, (batch, batch + 1), {"peer": 0.25}, 100)
