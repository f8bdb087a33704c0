"""One cold start in a process of its own: `python -m benchmarks.cold_case CASE WAY` prints JSON for `cold.py`.

The JSON has the seconds of the processor that each stage took, and the names of the programs that jaxtorch compiled in
it. Imports and the first use of the device come before.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.programs import stats

from .models import GPT, jax_gpt
from .training import resnet18

Params = dict[str, jax.Array]
DEPTH, WIDTH, HEADS, LENGTH = 12, 256, 8, 128


def _gpt() -> nn.Module:
    return GPT(DEPTH, WIDTH, HEADS, LENGTH)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT": _gpt,
    "ResNet-18": resnet18,
    "GPT-2 small": _gpt2,
    "ViT-B": _vit,
}


def _batch(model: str) -> tuple[torch.Tensor, torch.Tensor]:
    if model == "GPT":
        x, y = torch.randint(256, (2, 2, LENGTH))
        return x, y
    return torch.randn(8, 3, 64, 64), torch.randint(10, (8,))


def torch_steps(model: str, device: str, captured: bool) -> dict[str, Callable[[], object]]:
    """The construction of a model and two training steps in torch."""
    built: dict[str, Any] = {}

    def construct() -> None:
        torch.manual_seed(0)
        with torch.device(device):
            built["model"] = MODELS[model]()

    def prepare() -> None:
        net, (x, y) = built["model"], (t.to(device) for t in _batch(model))
        optimizer: torch.optim.Optimizer
        if model == "GPT":
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        else:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x, y) if model == "GPT" else F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = jaxtorch.jit(step) if captured else step

        def finished() -> None:
            run(x, y)
            if device == "jax":
                torch.jax.synchronize()

        built["step"] = finished

    return {
        "construct": construct,
        "prepare": prepare,
        "first step": lambda: built["step"](),
        "second step": lambda: built["step"](),
    }


def jax_steps(model: str) -> dict[str, Callable[[], object]]:
    """The same steps in JAX with optax."""
    torch.manual_seed(0)  # the batch is a part of the program, which a restart finds again
    net = MODELS[model]()
    state: dict[str, Any] = {"p": {k: jnp.array(v.detach()) for k, v in net.named_parameters()}}
    x, y = (jnp.array(t.numpy()) for t in _batch(model))
    optimizer = optax.adamw(1e-3) if model == "GPT" else optax.sgd(0.1, momentum=0.9)
    state["o"] = optimizer.init(state["p"])

    def loss(p: Params) -> jax.Array:
        return jax_gpt(p, x, y, DEPTH, HEADS) if model == "GPT" else jax_resnet(p, x, y)

    @jax.jit
    def step(p: Params, o: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(p)
        updates, o = optimizer.update(gradients, o, p)
        return value, optax.apply_updates(p, updates), o

    def run() -> None:
        value, state["p"], state["o"] = step(state["p"], state["o"])
        jax.block_until_ready((value, state))

    return {"first step": run, "second step": run}


def jax_resnet(p: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """The cross entropy of `training.resnet18` in plain JAX."""

    def convolved(name: str, x: jax.Array, stride: int, pad: int) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, p[f"{name}.weight"], (stride, stride), [(pad, pad)] * 2
        )

    def normalized(name: str, x: jax.Array) -> jax.Array:
        mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        scale, shift = (p[f"{name}.{k}"].reshape(-1, 1, 1) for k in ("weight", "bias"))
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift

    def block(name: str, x: jax.Array, stride: int) -> jax.Array:
        h = jax.nn.relu(normalized(f"{name}.bn1", convolved(f"{name}.conv1", x, stride, 1)))
        h = normalized(f"{name}.bn2", convolved(f"{name}.conv2", h, 1, 1))
        if f"{name}.down.0.weight" in p:
            x = normalized(f"{name}.down.1", convolved(f"{name}.down.0", x, stride, 0))
        return jax.nn.relu(h + x)

    h = jax.nn.relu(normalized("1", convolved("0", x, 1, 1)))
    for i in range(8):
        h = block(str(3 + i), h, 2 if i in (2, 4, 6) else 1)
    logits = h.mean((2, 3)) @ p["13.weight"].T + p["13.bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def main(model: str, way: str) -> None:
    stages = (
        jax_steps(model)
        if way == "JAX"
        else torch_steps(model, "cpu" if way == "torch CPU" else "jax", way == "jit")
    )
    np.asarray(jax.jit(lambda x: x + 1)(jnp.ones(3)))  # JAX starts its backend
    (torch.ones(3, device="jax") + 1).cpu()
    if way == "deferred":
        jaxtorch.config.update(execution="deferred")
    wanted = ["construct"] if len(sys.argv) > 3 else list(stages)
    result: dict[str, Any] = {}
    for stage in wanted:
        started, before = time.process_time(), len(stats.compiled)
        stages[stage]()
        names = [r.name for r in stats.compiled[before:]]
        hits = sum(bool(r.persistent_hit) for r in stats.compiled[before:])
        result[stage] = {"cpu": time.process_time() - started, "programs": names, "hits": hits}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:3])
