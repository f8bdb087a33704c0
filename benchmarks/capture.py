"""The cost of captured code: one cached call, and whole steps compared with the same in JAX and in eager torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch

from .harness import Row, compare


def finish() -> None:
    """Wait for the device."""
    torch.jax.synchronize()


def one_call() -> Row:
    """A cached `pure` call of one operator."""
    x, a = torch.randn(8, device="jax"), jnp.ones(8)
    ours, theirs = jaxtorch.pure(lambda x: x.sin()), jax.jit(jnp.sin)
    return compare(
        "pure: x.sin() of 8 elements",
        {"pure": lambda: ours(x), "jax.jit": lambda: theirs(a), "eager": lambda: x.sin()},
        finish,
        limit=2.0,
        against="jax.jit",
    )


class Scaled(nn.Module):
    """A layer whose code reads two numbers, so it adds two guards."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = 1.5, 0.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`scale * x + shift`, of any shape."""
        return self.scale * x + self.shift


def many_parameters() -> Iterator[Row]:
    """A module of 148 parameters that reads 50 numbers, under `no_grad` and with autograd recording."""
    layers = [nn.Linear(16, 16) for _ in range(74)]
    model = nn.Sequential(*layers[:25], *(Scaled() for _ in range(25)), *layers[25:]).to("jax")
    x, a = torch.randn(4, 16, device="jax"), jnp.ones((4, 16))
    parameters = {
        name: jnp.asarray(p.detach().cpu().numpy()) for name, p in model.named_parameters()
    }

    def forward(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for i in range(99):
            scaled = 25 <= i < 50
            x = 1.5 * x + 0.25 if scaled else x @ p[f"{i}.weight"].T + p[f"{i}.bias"]
        return x

    ours, theirs = jaxtorch.pure(model), jax.jit(forward)

    def without() -> Any:
        with torch.no_grad():
            return ours(x)

    yield compare(
        "pure: 148 parameters and 50 guards, no_grad",
        {"pure": without, "jax.jit": lambda: theirs(parameters, a)},
        finish,
        calls=200,
        limit=1.3,
        against="jax.jit",
    )
    yield compare(
        "pure: 148 parameters and 50 guards, recording",
        {"pure": lambda: ours(x), "jax.jit": lambda: theirs(parameters, a)},
        finish,
        calls=100,
        limit=3.0,
        against="jax.jit",
    )


def steps() -> Iterator[Row]:
    """A training step (SGD with momentum) of an MLP at two sizes: `jit`, plain JAX, eager torch on both devices."""
    for name, width, batch, limit in (("tiny", 32, 16, 1.5), ("1024 wide", 1024, 512, 1.1)):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )
        x, y = torch.randn(batch, width), torch.randint(0, 10, (batch,))
        contestants = {
            "jit": _torch_step(copy.deepcopy(model).to("jax"), x.to("jax"), y.to("jax"), True),
            "JAX": _jax_step(model, x, y),
            "eager": _torch_step(copy.deepcopy(model).to("jax"), x.to("jax"), y.to("jax"), False),
            "torch CPU": _torch_step(copy.deepcopy(model), x, y, False),
        }
        calls = 100 if width < 100 else 5
        yield compare(
            f"training step, {name}",
            contestants,
            finish,
            calls=calls,
            rounds=9,
            limit=limit,
            against="JAX",
        )


def _torch_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor, captured: bool) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = jaxtorch.jit(step) if captured else step
    return lambda: run(x, y)


def _jax_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    def array(t: torch.Tensor) -> jax.Array:
        return jnp.array(t.detach().numpy())

    def loss_of(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        for i in (0, 2, 4):
            x = x @ p[f"{i}.weight"].T + p[f"{i}.bias"]
            x = jax.nn.relu(x) if i < 4 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    def update(p: Any, m: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
        return jax.tree.map(lambda p, m: p - 0.01 * m, p, m), m, loss

    run = jax.jit(update, donate_argnums=(0, 1))
    state: list[Any] = [{k: array(p) for k, p in model.named_parameters()}]
    state.append(jax.tree.map(jnp.zeros_like, state[0]))
    a, b = array(x), array(y)

    def step() -> jax.Array:
        *state[:], loss = run(*state, a, b)
        return loss

    return step


def rows() -> Iterator[Row]:
    """One row per comparison."""
    yield one_call()
    yield from many_parameters()
    yield from steps()
