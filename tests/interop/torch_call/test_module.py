"""Torch modules as functions of their parameters."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

from jaxtorch import module_to_jax

DEVICES = pytest.mark.parametrize("device", ["cpu", "jax"])


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 3))


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((16, 4)).astype(np.float32), generator.integers(0, 3, 16)


def trained_in_torch(model: nn.Module, steps: int) -> list[float]:
    x, y = map(torch.from_numpy, data())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@DEVICES
def test_training_in_optax_is_training_in_torch(device: str) -> None:
    wanted = trained_in_torch(network(nn.GELU()), 5)
    apply, params = module_to_jax(network(nn.GELU()).to(device))
    x, y = data()
    optimizer = optax.sgd(0.1, momentum=0.9)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss_of(params: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for _ in range(5):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


@DEVICES
def test_the_module_stays_as_it_is(device: str) -> None:
    model = network(nn.BatchNorm1d(8)).to(device)
    before = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    apply, params = module_to_jax(model)
    jax.jit(jax.grad(lambda params: apply(params, data()[0]).sum()))(params)
    jax.tree.map(
        np.testing.assert_array_equal, {n: v.cpu() for n, v in model.state_dict().items()}, before
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert np.asarray(params["0.weight"]).all()


@DEVICES
def test_running_statistics_are_returned(device: str) -> None:
    x, _ = data()
    reference = network(nn.BatchNorm1d(8))
    wanted = reference(torch.from_numpy(x)).detach()
    apply, variables = module_to_jax(network(nn.BatchNorm1d(8)).to(device), mutable=True)
    found, buffers = jax.jit(apply)(variables, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert buffers.keys() == dict(reference.named_buffers()).keys()
    for name, buffer in reference.named_buffers():
        np.testing.assert_allclose(buffers[name], buffer, rtol=1e-5, atol=1e-6)


@DEVICES
def test_dropout_draws_from_a_key(device: str) -> None:
    apply, params = module_to_jax(network(nn.Dropout(0.5)).to(device), rng=True)
    x, _ = data()
    one, again, other = (jax.jit(apply)(params, jax.random.key(k), x) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(tokens))

    torch.manual_seed(0)
    model, tokens = Tied(), torch.tensor([0, 3, 3])
    model(tokens).square().sum().backward()
    apply, params = module_to_jax(model)
    assert list(params) == ["embedding.weight"]
    gradient = jax.grad(lambda params: (apply(params, tokens.numpy()) ** 2).sum())(params)
    np.testing.assert_allclose(gradient["embedding.weight"], model.embedding.weight.grad, rtol=1e-5)


def test_per_example_gradients_are_one_batch() -> None:
    model = network(nn.Tanh())
    apply, params = module_to_jax(model)
    x, _ = data()
    found = jax.vmap(jax.grad(lambda params, x: apply(params, x).sum()), in_axes=(None, 0))(
        params, x
    )
    for i in (0, 7):
        model.zero_grad()
        model(torch.from_numpy(x[i])).sum().backward()
        for name, parameter in model.named_parameters():
            np.testing.assert_allclose(found[name][i], parameter.grad, rtol=1e-4, atol=1e-6)


def test_what_is_no_module() -> None:
    with pytest.raises(
        TypeError, match=r"module_to_jax takes a torch.nn.Module, not function: see torch2jax"
    ):
        module_to_jax(lambda x: x)  # type: ignore[arg-type]


def test_keywords_and_pytrees_go_through() -> None:
    class Scaled(nn.Module):
        def forward(self, batch: dict[str, Any], *, scale: torch.Tensor) -> dict[str, Any]:
            return {"out": batch["x"] * scale}

    apply, params = module_to_jax(Scaled())
    found = apply(params, {"x": jnp.ones(2)}, scale=jnp.float32(3.0))
    np.testing.assert_array_equal(found["out"], [3.0, 3.0])


def test_threads_call_one_module_with_parameters_of_their_own() -> None:
    """As the devices of a `shard_map` do."""
    apply, params = module_to_jax(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)))
    x, compiled = jnp.ones((16, 8)), jax.jit(apply)

    def call(scale: int) -> None:
        own = {name: scale * p for name, p in params.items()}
        hidden = jnp.tanh(x @ own["0.weight"].T + own["0.bias"])
        expected = hidden @ own["2.weight"].T + own["2.bias"]
        for _ in range(100):
            np.testing.assert_allclose(compiled(own, x), expected, rtol=1e-4, atol=1e-4)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(4)))
    finally:
        sys.setswitchinterval(interval)
