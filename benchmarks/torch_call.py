"""Calls from JAX into torch: `torch2jax` compared with wrap-torch2jax, if installed, and `jax.pure_callback`.

wrap-torch2jax compiles C++ at its first call. It is not a dependency. To compare with it, run
`pip install --no-deps --target FOLDER wrap-torch2jax` and put FOLDER on PYTHONPATH.
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
    try:
        return importlib.import_module("wrap_torch2jax")
    except ImportError:
        print("wrap-torch2jax is not installed: no ratios to it", file=sys.stderr)
        return None


def _add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def _squares(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a - b) ** 2).mean()


def _by_pure_callback(like: jax.Array) -> Callable[..., Any]:
    def on_host(a: Any, b: Any) -> Any:
        return (torch.tensor(np.asarray(a)) + torch.tensor(np.asarray(b))).numpy()

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
    """Measure once, and yield a row for each goal. Each call waits for its result, so the time is that of a round trip.

    A turn begins with a call that is not timed. It is slower, because caches and allocators are still in the state that
    the previous turn left.
    """

    def calling(function: Callable[..., Any]) -> Callable[[], Any]:
        compiled = jax.jit(function)
        return lambda: jax.block_until_ready(compiled(*arguments))

    contestants = {key: calling(function) for key, function in functions.items()}
    row = compare(
        name,
        contestants,
        lambda: None,
        calls=calls,
        rounds=rounds,
        prepare=lambda key: contestants[key](),
    )
    for against, limit in goals.items():
        if against in row.seconds:
            yield Row(name, row.seconds, limit, against)


def rows() -> Iterator[Row]:
    """One row per goal. The goals are ratios to the peer and to JAX's own callback."""
    peer = _peer()

    def contestants(fn: Any, shape: tuple[int, ...]) -> dict[str, Any]:
        examples = 2 * [torch.ones(shape)]
        theirs = {"peer": peer.torch2jax(fn, *examples)} if peer else {}
        return {"torch2jax": jaxtorch.torch2jax(fn, *examples), **theirs}

    x = jnp.ones((8, 8))
    small = contestants(_add, (8, 8))
    small |= {"pure_callback": _by_pure_callback(x), "jit alone": jnp.add}
    yield from _contest("add 8x8", small, (x, x + 1), {"peer": 1.3, "pure_callback": 0.3}, 500)

    x = jnp.ones((4096, 1024))
    large = contestants(_add, (4096, 1024))
    yield from _contest("add 4096x1024", large, (x, x + 1), {"peer": 1.05}, 5)

    gradients = {key: jax.value_and_grad(f) for key, f in contestants(_squares, (64,)).items()}
    x = jnp.linspace(-1, 1, 64)
    yield from _contest("value_and_grad", gradients, (x, x + 1), {"peer": 0.8}, 200)

    batches = {key: jax.vmap(f) for key, f in contestants(_add, (8, 8)).items()}
    batch = jnp.ones((64, 8, 8))
    yield from _contest("vmap over 64", batches, (batch, batch + 1), {"peer": 0.25}, 100)
