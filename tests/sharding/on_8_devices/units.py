"""`fsdp` gathers parameters and nothing else, however small the batch; the module is the same afterwards."""

from __future__ import annotations

import copy
import io
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import jaxtorch
from jaxtorch.parallel.units import unit_of
from jaxtorch.programs import stats
from tests.sharding.on_8_devices._meshes import AUTO, P, Tensor, numbers, spec_of

ALL = jaxtorch.mesh(8, "data")
_COLLECTIVE = re.compile(
    r"= (\([^)]*\)|\S+) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


class Around(nn.Module):
    """Adds what a layer computes to its input."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return x + (y[0] if isinstance(y, tuple) else y)


class Again(nn.ModuleList):
    """Calls its blocks under `torch.utils.checkpoint`."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def mlp() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))


def rows(*size: int) -> Callable[[], Tensor]:
    return lambda: numbers(*size, seed=5)


# Blocks whose parameters are larger than the activations, and their input.
BLOCKS: dict[str, tuple[Callable[[], list[nn.Module]], Callable[[], Tensor]]] = {
    "mlp": (lambda: [Around(mlp()), Around(mlp())], rows(8, 32)),
    "checkpoint": (lambda: [Again([Around(mlp()), Around(mlp())])], rows(8, 32)),
    "lstm": (lambda: [Around(nn.LSTM(32, 32, batch_first=True))], rows(8, 2, 32)),
    "embedding": (
        lambda: [nn.Embedding(64, 32), Around(mlp())],
        lambda: torch.arange(16).reshape(8, 2) * 7 % 64,
    ),
}


def network(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*BLOCKS[name][0]())


def divided(model: nn.Sequential) -> nn.Sequential:
    """With a call for each block, and one for all."""
    for block in model:
        for part in block if isinstance(block, Again) else [block]:
            jaxtorch.fsdp(part, ALL)
    return jaxtorch.fsdp(model, ALL)


def in_jit(model: nn.Module, x: Tensor) -> Tensor:
    @jaxtorch.jit
    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step(x)


def in_pure(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = jaxtorch.pure(lambda x: model(x).square().mean())(x)
    loss.backward()
    return loss


def in_compile(model: nn.Module, x: Tensor) -> Tensor:
    torch._dynamo.reset()
    loss: Tensor = torch.compile(model, backend="jax", fullgraph=True)(x).square().mean()
    loss.backward()
    return loss


WAYS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "jit": in_jit,
    "pure": in_pure,
    "compile": in_compile,
}


def _shape(text: str) -> tuple[int, ...]:
    """The sorted sizes of an array, as XLA writes it: `f32[8,16]{1,0}`."""
    return tuple(sorted(map(int, re.findall(r"\d+", text.partition("[")[2].partition("]")[0]))))


# Dynamo does not look into recurrent layers.
@pytest.mark.parametrize(
    ("name", "way"), [(n, w) for n in BLOCKS for w in WAYS if (n, w) != ("lstm", "compile")]
)
def test_only_parameters_are_gathered(name: str, way: str) -> None:
    expected, x = network(name), BLOCKS[name][1]()
    loss = expected(x).square().mean()
    loss.backward()
    model, first = divided(network(name)), len(stats.compiled)
    before = list(model.parameters())
    result = WAYS[way](model, jaxtorch.shard(x, "data", ALL))
    assert result.item() == pytest.approx(loss.item(), rel=1e-5)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert spec_of(ours.grad) == spec_of(ours) != P()
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert not any(unit.put for part in model.modules() if (unit := unit_of(part)))
    handles = [record.handle() for record in stats.compiled[first:]]
    text = "\n".join(handle.executable.as_text() or "" for handle in handles if handle)
    found = _COLLECTIVE.findall(text)
    gathered = Counter(_shape(of) for of, kind in found if kind == "all-gather")
    twice = Counter(2 * [tuple(sorted(p.shape)) for p in model.parameters()])
    assert gathered
    assert gathered <= twice  # forward, and once more in the backward
    assert {kind for _, kind in found} <= {"all-gather", "all-reduce", "reduce-scatter"}


def test_a_scan_gathers_in_its_body() -> None:
    """And so holds one layer at a time."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Around(mlp()) for _ in range(3))
    expected = copy.deepcopy(layers)
    x = numbers(8, 32)
    y = x
    for layer in expected:
        y = layer(y)
    y.square().mean().backward()
    for layer in layers:
        jaxtorch.fsdp(layer, ALL)
    first = len(stats.compiled)
    run = jaxtorch.pure(lambda x: jaxtorch.scan_layers(layers, x).square().mean())
    run(jaxtorch.shard(x, "data", ALL)).backward()
    for ours, theirs in zip(layers.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)
    handles = [record.handle() for record in stats.compiled[first:]]
    text = "\n".join(handle.executable.as_text() or "" for handle in handles if handle)
    gathered = [_shape(of) for of, kind in _COLLECTIVE.findall(text) if kind == "all-gather"]
    assert (1, 32, 128) in gathered
    assert not any(3 in shape for shape in gathered)  # of all layers at once


def test_parameters_return_after_an_error() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError(type(self.weight).__name__)

    model = jaxtorch.fsdp(Fails(), ALL)
    weight = model.weight
    for capture in (jaxtorch.pure, jaxtorch.jit):
        with pytest.raises(KeyError, match="Tensor"):
            capture(model)(torch.ones(8, device="jax"))
        assert model._parameters["weight"] is weight


def test_tied_parameters_and_copies() -> None:
    def tied() -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False))
        model[1].weight = model[0].weight
        return model

    ids = torch.arange(8)
    expected = tied()
    expected(ids).square().mean().backward()
    model = jaxtorch.fsdp(tied(), ALL)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for each in (model, copy.deepcopy(model), torch.load(file, weights_only=False)):
        in_pure(each, ids.to("jax"))
        assert each[1].weight is each[0].weight
        torch.testing.assert_close(each[0].weight.grad.cpu(), expected[0].weight.grad)


def test_a_module_that_moves_afterwards() -> None:
    """To copies, to another mesh, to another layout."""
    model, x = jaxtorch.fsdp(nn.Linear(8, 8), ALL), numbers(8, 8)
    expected = model(x.to("jax")).detach().cpu()
    moves: list[tuple[Callable[[], object], P]] = [
        (lambda: jaxtorch.data_parallel(model, ALL), P()),
        (lambda: jaxtorch.fsdp(model, AUTO, axis="model"), P("model")),
        (lambda: jaxtorch.shard(model, {"weight": P(None, "data")}, AUTO), P(None, "data")),
    ]
    for move, spec in moves:
        move()
        assert spec_of(model.weight) == spec
        torch.testing.assert_close(jaxtorch.pure(model)(x.to("jax")).detach().cpu(), expected)
        assert spec_of(model.weight) == spec


def test_parts_follow_the_axes_of_the_whole() -> None:
    """Hybrid sharding, in either order: a block spreads its batch over both axes."""
    mesh = jaxtorch.mesh((2, 4), ("replica", "data"))
    for order in ("replica first", "data first"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        calls: list[Callable[[], Any]] = [
            lambda m=model: jaxtorch.data_parallel(m, mesh, axis="replica"),
            lambda m=model: [jaxtorch.fsdp(part, mesh, axis="data") for part in (*m, m)],
        ]
        for call in calls if order == "replica first" else reversed(calls):
            call()
        (hook,) = (h for h in model[1]._forward_pre_hooks.values() if hasattr(h, "spread"))
        assert hook.axes == ("replica", "data")


def test_gradients_of_a_captured_step_lie_like_their_leaves() -> None:
    """Also those that a step creates for parameters with a copy on each device."""
    rules = {"0.weight": P("model"), "0.bias": P(), "1.weight": P(None, "model"), "2.weight": P()}
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8))
    jaxtorch.tensor_parallel(model, AUTO, rules)
    in_jit(model, numbers(8, 8).to("jax"))
    for name, parameter in model.named_parameters():
        assert spec_of(parameter.grad) == spec_of(parameter), name


def test_by_the_name_of_fsdp2() -> None:
    mesh = jaxtorch.init_device_mesh("jax", (8,))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for block in (*model, model):
        assert jaxtorch.fully_shard(block, mesh=mesh) is block
    assert {spec_of(p) for p in model.parameters()} == {P("dim_0")}
    assert all(unit_of(part) for part in model.modules())
    with pytest.raises(ValueError, match="no axis 'model'"):
        jaxtorch.fully_shard(nn.Linear(8, 8), mesh=mesh, axis="model")


class Clips(nn.Module):
    """Writes to its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(5 * numbers(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return x @ self.weight


class Assigns(Clips):
    """Assigns another parameter."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight = nn.Parameter(torch.ones_like(self.weight))
        return x @ self.weight


@pytest.mark.parametrize("make", [Clips, Assigns])
def test_what_a_module_writes_to_its_parameters_stays(make: type[Clips]) -> None:
    expected, model = make(), jaxtorch.fsdp(make(), ALL)
    x = numbers(8, 8)
    result = jaxtorch.jit(model)(x.to("jax"))
    torch.testing.assert_close(result.detach().cpu(), expected(x).detach())
    torch.testing.assert_close(model.weight.detach().cpu(), expected.weight.detach())


def test_an_embedding_with_a_largest_norm() -> None:
    model = jaxtorch.fsdp(nn.Embedding(16, 8, max_norm=0.5), ALL)
    jaxtorch.jit(model)(torch.arange(16, device="jax"))
    assert model.weight.norm(dim=1).max().item() < 0.501


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a layer removed": lambda model: model.__delitem__(1),
    "a layer wrapped": lambda model: model.__setitem__(1, nn.Sequential(model[1])),
    "a parameter removed": lambda model: setattr(model[1], "bias", None),
    "a parametrization": lambda model: nn.utils.parametrizations.weight_norm(model[1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_module_that_is_changed_afterwards(change: str) -> None:
    model = jaxtorch.fsdp(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), ALL)
    CHANGES[change](model)
    x = numbers(8, 8).to("jax")
    torch.testing.assert_close(jaxtorch.pure(model)(x), model(x))


def test_transforms_of_torch_func() -> None:
    model, x = jaxtorch.fsdp(nn.Linear(8, 8), ALL), numbers(8, 8)

    def gradients_at(x: Tensor) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(model, parameters, (x,)).sum()

        return torch.func.grad(loss)(dict(model.named_parameters()))

    gradients = jaxtorch.pure(gradients_at)(x.to("jax"))
    torch.testing.assert_close(gradients["weight"].cpu(), x.sum(0).expand(8, 8))


def test_inference_mode() -> None:
    model, x = jaxtorch.fsdp(nn.Linear(8, 8), ALL), numbers(8, 8).to("jax")
    with torch.inference_mode():
        found = jaxtorch.pure(model)(x).cpu()
    torch.testing.assert_close(found, model(x).detach().cpu())
