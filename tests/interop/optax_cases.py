"""The transformations that `optax_optimizer` is tried with, and what optax alone makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
import torch
from torch import nn

import jaxtorch

STEPS = 4
SHAPES = {"weight": (4, 3), "bias": (3,), "scale": ()}


def _not_biases(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)


TRANSFORMATIONS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=_not_biases),
    "lion": lambda: optax.lion(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-2, centered=True, momentum=0.9),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "scheduled": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 6)),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(1e-2, b1=0.8),
    "injected, scheduled": lambda: optax.inject_hyperparams(optax.sgd)(
        optax.linear_schedule(1.0, 0.1, 3), momentum=0.5
    ),
    "noisy": lambda: optax.noisy_sgd(0.1, key=7),
    "several steps": lambda: optax.MultiSteps(optax.adam(1e-1), 2).gradient_transformation(),
    "schedule free": lambda: optax.contrib.schedule_free_adamw(1e-2),
    "only some": lambda: optax.masked(optax.adam(1e-1), _not_biases),
    "amsgrad": lambda: optax.amsgrad(1e-2),
    "average": lambda: optax.chain(optax.sgd(0.1), optax.ema(0.9)),
    "two kinds": lambda: optax.multi_transform(
        {"a": optax.adam(1e-1), "b": optax.sgd(1e-1)},
        lambda params: jax.tree.map(lambda p: "a" if p.ndim > 1 else "b", params),
    ),
    "finite": lambda: optax.apply_if_finite(optax.adam(1e-1), 3),
}


def start(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()
    }


def gradients(step: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step + 1)
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()
    }


def by_optax(
    transformation: Any, named: bool, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """The parameters after some steps of optax alone."""

    def tree(tensors: dict[str, torch.Tensor]) -> Any:
        arrays = jaxtorch.to_jax(tensors)
        return arrays if named else list(arrays.values())

    with jax.enable_x64(dtype == torch.float64):
        params = tree(start(dtype))
        state = transformation.init(params)

        @jax.jit
        def update(grads: Any, state: Any, params: Any) -> Any:
            updates, state = transformation.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for i in range(STEPS):
            params, state = update(tree(gradients(i, dtype)), state, params)
    found = params if named else dict(zip(SHAPES, params, strict=True))
    return jaxtorch.to_torch(found, "cpu")


def by_us(
    transformation: Any,
    named: bool,
    device: str,
    dtype: torch.dtype = torch.float32,
    captured: bool = False,
) -> dict[str, torch.Tensor]:
    params = {name: nn.Parameter(t.to(device)) for name, t in start(dtype).items()}
    optimizer = jaxtorch.optax_optimizer(
        transformation, params.items() if named else params.values()
    )

    def step(*grads: torch.Tensor) -> None:
        for p, g in zip(params.values(), grads, strict=True):
            p.grad = g
        optimizer.step()

    run = jaxtorch.jit(step) if captured else step
    for i in range(STEPS):
        run(*(g.to(device) for g in gradients(i, dtype).values()))
    return {name: p.detach().cpu() for name, p in params.items()}


def model_of(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)


def backward(model: nn.Module, step: int = 0) -> torch.Tensor:
    """A loss and its gradients."""
    p = next(model.parameters())
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).to(p.device, p.dtype)
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss


def injected(**settings: Any) -> Any:
    return optax.inject_hyperparams(optax.adamw)(**{"learning_rate": 1e-2, **settings})
