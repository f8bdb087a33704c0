"""Captured code on sharded tensors and on tensors on one device, through every front door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.programs import stats
from tests.sharding.on_8_devices._meshes import MESHES, P, Tensor, numbers, sharded, spec_of

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
}


def network(mesh: str | None) -> nn.Sequential:
    """A network with two sharded layers and the others on one device."""
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 4)
    model = nn.Sequential(*layers)
    if mesh is not None:
        for layer in (model[0], model[3]):
            layer.weight = nn.Parameter(sharded(layer.weight.detach(), P("model"), MESHES[mesh]))
            layer.bias = nn.Parameter(sharded(layer.bias.detach(), P("model"), MESHES[mesh]))
        model.to("jax")
    return model


def losses(way: str, make: Callable[[Any], torch.optim.Optimizer], mesh: str | None) -> list[float]:
    """Of five steps. Nothing is compiled after the third."""
    model = network(mesh)
    optimizer = make(model.parameters())
    x = numbers(8, 4) if mesh is None else sharded(numbers(8, 4), P("data"), MESHES[mesh])
    call: Any = model
    if way == "pure":
        call = jaxtorch.pure(model)
    elif way == "compile":
        call = torch.compile(model, backend="jax")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = jaxtorch.jit(step) if way == "jit" else step
    result = [run().item() for _ in range(3)]
    compiled = stats.compile_count()
    result += [run().item() for _ in range(2)]
    assert stats.compile_count() == compiled
    if mesh is not None:
        for layer in (model[0], model[3]):
            state = [s for s in optimizer.state[layer.weight].values() if isinstance(s, Tensor)]
            alike = [s for s in state if s.shape == layer.weight.shape]
            assert layer.weight.grad is not None
            lie = {spec_of(t) for t in (layer.weight, layer.bias, layer.weight.grad, *alike)}
            assert lie == {P("model")}
    return result


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("way", ["eager", "pure", "jit", "compile"])
def test_training(way: str, name: str, mesh: str) -> None:
    expected = losses("eager", OPTIMIZERS[name], None)
    assert losses(way, OPTIMIZERS[name], mesh) == pytest.approx(expected, rel=1e-3)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}


@pytest.mark.parametrize("way", ["jit", "compile"])
def test_what_is_written_keeps_its_sharding(way: str) -> None:
    state, mean = sharded(numbers(8, 4), P("data", "model")), torch.zeros(4, device="jax")

    def f(x: Tensor) -> Tensor:
        state.add_(x)
        mean.copy_(state.mean(0))
        return state[0] * 2

    run = WAYS[way](f)
    for _ in range(3):
        result = run(torch.ones(4, device="jax"))
    assert spec_of(state) == P("data", "model")
    torch.testing.assert_close(state.cpu(), numbers(8, 4) + 3)
    torch.testing.assert_close(mean.cpu(), (numbers(8, 4) + 3).mean(0))
    torch.testing.assert_close(result.cpu(), (numbers(8, 4)[0] + 3) * 2)


@pytest.mark.parametrize("way", ["pure", "compile"])
def test_a_call_with_another_sharding(way: str) -> None:
    """Is another program, with the same values and gradients."""
    run = WAYS[way](lambda x, w: (x @ w).sin())
    w = numbers(4, 4, seed=1)
    for spec in (P("data"), P(None, "model"), P(), P("data")):
        x, weight = sharded(numbers(8, 4), spec), w.to("jax").requires_grad_()
        y = run(x, weight)
        y.square().sum().backward()
        expected = w.clone().requires_grad_()
        (numbers(8, 4) @ expected).sin().square().sum().backward()
        assert weight.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(weight.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-4)


SAVING_NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled": lambda x: x * 2,
    "negated": lambda x: -x,
    "summed": lambda x: x.sum(),
    "flipped": lambda x: x.flip(0),
}


@pytest.mark.parametrize("way", ["pure", "compile"])
@pytest.mark.parametrize("name", SAVING_NOTHING)
def test_a_backward_program_without_residuals(name: str, way: str) -> None:
    x = sharded(numbers(8, 4), P("data", "model")).requires_grad_()
    for cotangent in (lambda y: torch.ones_like(y), lambda y: torch.ones(y.shape, device="jax")):
        x.grad = None
        y = WAYS[way](SAVING_NOTHING[name])(x)
        y.backward(cotangent(y))
        assert spec_of(x.grad) == P("data", "model")
        expected = numbers(8, 4).requires_grad_()
        SAVING_NOTHING[name](expected).sum().backward()
        assert torch.equal(x.grad.cpu(), expected.grad)


@pytest.mark.parametrize("way", ["eager", *WAYS])
def test_random_keys(way: str) -> None:
    """The numbers are those of unsharded code, and the key returns to its device."""

    def f(x: Tensor) -> Tensor:
        noise = torch.randn(8, 4, device="jax")
        return torch.nn.functional.dropout(x, 0.5, training=True) + noise

    run = WAYS[way](f) if way in WAYS else f
    drawn = []
    for x in (torch.ones(8, 4, device="jax"), sharded(torch.ones(8, 4), P("data"))):
        torch.manual_seed(3)
        results = [run(x) for _ in range(3)]
        results.append(torch.randn(3, device="jax"))
        assert spec_of(results[-1]) is None
        drawn.append(torch.cat([r.cpu().flatten() for r in results]))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("way", ["pure", "jit", "compile"])
@pytest.mark.parametrize("change", ["another tensor", "in place", "the same"])
def test_an_input_on_one_device_may_change_between_calls(way: str, change: str) -> None:
    def scaled(x: Tensor, factor: Tensor) -> Tensor:
        return x * factor + 1

    call = {
        "pure": jaxtorch.pure,
        "jit": jaxtorch.jit,
        "compile": lambda f: torch.compile(f, backend="jax"),
    }[way](scaled)
    values = numbers(8, 4)
    x = sharded(values, P("data"), MESHES["auto"])
    factor = torch.tensor(2.0, device="jax")
    for i in range(4):
        expected = values.cpu() * factor.item() + 1
        torch.testing.assert_close(call(x, factor).cpu(), expected)
        if change == "another tensor":
            factor = torch.tensor(3.0 + i, device="jax")
        elif change == "in place":
            factor += 1
