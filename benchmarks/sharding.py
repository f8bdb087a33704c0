"""A training step over 1, 2, 4 and 8 simulated devices, data parallel and fsdp, beside the same in plain JAX."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from .harness import Row, compare

_MANY = "--xla_force_host_platform_device_count=8"
COUNTS = (1, 2, 4, 8)
WIDTH, DEPTH, BATCH = 512, 4, 256


def rows() -> Iterator[str]:
    """One row for each strategy and number of devices, from a process of its own that has 8 devices."""
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks import sharding; sharding.main()"],
        env={**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_MANY}".strip()},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield from done.stdout.splitlines()


def main() -> None:
    """Print the rows."""
    for fsdp in (False, True):
        for count in COUNTS:
            print(_compared(count, fsdp), flush=True)


def _compared(count: int, fsdp: bool) -> Row:
    import torch

    name = (
        f"{'fsdp' if fsdp else 'data parallel'} step, {count} device{'s'[: count > 1]} (CPU time)"
    )
    contestants = {"jaxtorch.jit": _ours(count, fsdp), "jax.jit": _theirs(count, fsdp)}
    return compare(
        name,
        contestants,
        torch.jax.synchronize,
        calls=5,
        rounds=15,
        limit=1.1,
        against="jax.jit",
        clock=time.process_time,
    )


def _ours(count: int, fsdp: bool) -> Callable[[], object]:
    import torch
    from torch import nn

    import jaxtorch

    mesh = jaxtorch.mesh((count,), ("data",))
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).to("jax")
    (jaxtorch.fsdp if fsdp else jaxtorch.data_parallel)(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = jaxtorch.shard(torch.randn(BATCH, WIDTH).to("jax"), "data", mesh)

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(x)


def _theirs(count: int, fsdp: bool) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((count,), ("data",), (AxisType.Auto,), devices=jax.devices()[:count])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    of_weights = rows if fsdp else everywhere
    ones = jnp.ones((WIDTH, WIDTH), jnp.float32) / WIDTH
    weights = [jax.device_put(ones * (i + 1), of_weights) for i in range(DEPTH)]
    momenta = [jax.device_put(ones * 0, of_weights) for _ in range(DEPTH)]
    x = jax.device_put(jax.random.normal(jax.random.key(0), (BATCH, WIDTH)), rows)
    Arrays = list[jax.Array]

    def loss_of(weights: Arrays, x: jax.Array) -> jax.Array:
        for weight in weights:
            # As fsdp does. XLA would gather the activations, which are fewer in this step.
            whole = jax.lax.with_sharding_constraint(weight, everywhere)
            x = jnp.tanh(x @ whole.T)
        return jnp.square(x).mean()

    def lay(arrays: Arrays) -> Arrays:
        return [jax.lax.with_sharding_constraint(a, of_weights) for a in arrays]

    def step(
        weights: Arrays, momenta: Arrays, gradients: Arrays, x: jax.Array
    ) -> tuple[Arrays, Arrays, Arrays, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x)
        momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
        weights = [w - 1e-3 * m for w, m in zip(weights, momenta, strict=True)]
        return lay(weights), lay(momenta), lay(gradients), loss

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    state = [weights, momenta, [jax.device_put(ones * 0, of_weights) for _ in range(DEPTH)]]

    def call() -> object:
        *state[:], loss = compiled(*state, x)
        return loss

    return call
