"""`jaxtorch.scan_layers` against the Python loop over the layers."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError
from jaxtorch.programs import compiled, stacking


class Block(nn.Module):
    """A residual block with statistics, dropout and a parameter tied within it."""

    def __init__(self, width: int, rate: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width, bias=False)
        self.down.weight = self.up.weight
        self.dropout = nn.Dropout(rate)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, power: int = 1) -> torch.Tensor:
        hidden = self.down(torch.tanh(self.up(self.norm(x))))
        return x + self.dropout(hidden) * scale**power


def stack(depth: int = 4, width: int = 4) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Block(width) for _ in range(depth)).to("jax")


def step(layers: nn.ModuleList, call: Callable[..., Any]) -> list[Any]:
    """One step: the result, all gradients and the buffers after it."""
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 24, device="jax").view(6, 4).requires_grad_()
    scale = torch.full((4,), 0.5, device="jax", requires_grad=True)
    result = call(layers, x, scale)
    result.square().sum().backward()
    gradients = [p.grad for p in [x, scale, *layers.parameters()]]
    buffers = [b.clone() for b in layers.buffers()]
    return [result.detach(), gradients, buffers]


def loop(layers: nn.ModuleList, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x, scale, power=2)
    return x


def captured(remat: Any) -> Callable[..., Any]:
    def call(layers: nn.ModuleList, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return jaxtorch.scan_layers(layers, x, scale, power=2, remat=remat)

    return call


@pytest.mark.parametrize("remat", [False, True, "dots_saveable"])
def test_values_gradients_masks_and_statistics_are_the_loops(remat: Any) -> None:
    layers = stack()
    expected = step(copy.deepcopy(layers), loop)
    ways: list[Callable[..., Any]] = [captured(remat)]
    if remat is not True:
        ways.append(lambda own, x, s: jaxtorch.pure(lambda x, s: captured(remat)(own, x, s))(x, s))
    for way in ways:
        got = step(copy.deepcopy(layers), way)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("remat", [False, True])
def test_a_training_step_in_jit(remat: bool) -> None:
    layers = stack()
    twin = copy.deepcopy(layers)

    def train(layers: nn.ModuleList, call: Any) -> Callable[[], torch.Tensor]:
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

        def one() -> torch.Tensor:
            optimizer.zero_grad()
            x = torch.linspace(-1, 1, 24, device="jax").view(6, 4)
            loss = call(layers, x, torch.ones(4, device="jax")).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return one

    ours, theirs = jaxtorch.jit(train(layers, captured(remat))), train(twin, loop)
    for seed in range(2):
        torch.manual_seed(seed)
        loss = ours()
        torch.manual_seed(seed)
        torch.testing.assert_close(loss, theirs())
    torch.testing.assert_close(
        [*layers.parameters(), *layers.buffers()],
        [*twin.parameters(), *twin.buffers()],
        rtol=1e-4,
        atol=1e-5,
    )


def test_remat_keeps_the_layers_inputs_and_no_more() -> None:
    layers = stack(depth=8, width=4)
    weights = sum(p.numel() for p in layers.parameters()) + sum(b.numel() for b in layers.buffers())
    rows = 4096
    x = torch.ones(rows, 4, device="jax", requires_grad=True)
    scale = torch.ones(4, device="jax")

    def held(remat: Any) -> float:
        """How many arrays of the size of `x` the forward pass keeps for the backward pass."""
        pure = jaxtorch.pure(lambda x: captured(remat)(layers, x, scale).sum())
        pure(x).backward()  # compiles
        before = torch.jax.memory_allocated()
        loss = pure(x)
        kept = torch.jax.memory_allocated() - before - loss.nbytes
        return (kept - 4 * weights) / x.nbytes

    assert held(False) > 3 * 8
    assert held("dots_saveable") < held(False)
    assert held(True) < 8 + 1  # with the weights, stacked a second time at most


def test_the_program_and_the_trace_do_not_grow_with_depth() -> None:
    runs = 0

    class Counting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal runs
            runs += 1
            return super().forward(x).relu()

    def program(depth: int) -> list[str]:
        layers = nn.ModuleList(Counting(3, 3) for _ in range(depth)).to("jax")
        view = jaxtorch.jax_view(lambda x: jaxtorch.scan_layers(layers, x))
        jaxpr = jax.make_jaxpr(view)(jnp.ones((2, 3), jnp.float32))
        (scan,) = [e for e in jaxpr.eqns if str(e.primitive) == "scan"]
        assert scan.params["length"] == depth
        assert not any(str(e.primitive) == "dot_general" for e in jaxpr.eqns)
        return [str(e.primitive) for e in scan.params["jaxpr"].eqns]

    assert program(2) == program(16)
    assert runs == 2


class Affine(nn.Module):
    """A layer with a frozen weight beside one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3) / 3)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight + self.frozen)


class Model(nn.Module):
    """Layers between an embedding and a head."""

    def __init__(self, depth: int, scanned: bool, between: bool = False):
        super().__init__()
        self.scanned, self.between = scanned, between
        self.embed = nn.Embedding(7, 3)
        self.layers = nn.ModuleList(Affine() for _ in range(depth))
        self.head = nn.Linear(3, 5)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        if self.scanned:
            return jaxtorch.scan_layers(self.layers, x)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.run(self.embed(tokens))
        return self.head(self.run(x) if self.between else x)


def twins(depth: int, **options: Any) -> tuple[Model, Model, torch.Tensor]:
    """A model that scans on the device, the same with a loop on the CPU, and tokens."""
    torch.manual_seed(0)
    theirs = Model(depth, False, **options)
    ours = Model(depth, True, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours.to("jax"), theirs, torch.randint(7, (2, 4))


def gradients(model: nn.Module) -> dict[str, Any]:
    return {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


def sum_of_squares(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tokens: model(tokens).square().sum()


def regularized(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Reads the parameters outside the loop as well."""
    return lambda tokens: (
        sum_of_squares(model)(tokens) + sum(p.square().sum() for p in model.parameters())
    )


@pytest.mark.parametrize("loss", [sum_of_squares, regularized])
@pytest.mark.parametrize("between", [False, True])
def test_within_a_larger_captured_model(between: bool, loss: Any) -> None:
    ours, theirs, tokens = twins(4, between=between)
    f = jaxtorch.pure(loss(ours))
    for _ in range(2):  # traced, and cached; gradients add up
        a, b = f(tokens.to("jax")), loss(theirs)(tokens)
        a.backward()
        b.backward()
        torch.testing.assert_close(a.cpu(), b)
    torch.testing.assert_close(gradients(ours), gradients(theirs))
    with torch.no_grad():
        torch.testing.assert_close(f(tokens.to("jax")).cpu(), b.detach())
    ours.layers[1].weight.data.zero_()  # a run reads the parameters of now
    theirs.layers[1].weight.data.zero_()
    torch.testing.assert_close(f(tokens.to("jax")).cpu(), loss(theirs)(tokens))


def test_a_second_derivative() -> None:
    ours, theirs, tokens = twins(3)
    results = []
    for model, f in ((ours, jaxtorch.pure(ours)), (theirs, theirs)):
        device = model.head.weight.device
        y = f(tokens.to(device)).square().sum()
        weights = [layer.weight for layer in model.layers]
        first = torch.autograd.grad(y, weights, create_graph=True)
        results.append(
            [g.cpu() for g in torch.autograd.grad(sum(g.sin().sum() for g in first), weights)]
        )
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("captured", [True, False])
def test_no_program_grows_with_depth(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    build = compiled.build

    def counting(function: Any, avals: Any, *args: Any, **keywords: Any) -> Any:
        with jax.enable_x64(True):
            outputs = jax.tree.leaves(jax.eval_shape(function, *avals))
        sizes.append((len(avals), len(outputs)))
        return build(function, avals, *args, **keywords)

    monkeypatch.setattr(compiled, "build", counting)
    monkeypatch.setattr(stacking, "build", counting)

    def programs(depth: int) -> list[tuple[int, int]]:
        stacking.forget()
        ours, _, tokens = twins(depth)
        f = jaxtorch.pure(ours) if captured else ours
        sizes.clear()
        f(tokens.to("jax")).sum().backward()
        return list(sizes)

    found = programs(4)
    assert found == programs(12)
    # Stacking: nothing, a row more; the model, forward and backward; splitting.
    assert len(found) == 5


def test_gradients_in_a_training_step_are_cut_where_its_inputs_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []
    build = compiled.build

    def reading(function: Any, avals: Any, *args: Any, **keywords: Any) -> Any:
        with jax.enable_x64(True):
            texts.append(jax.jit(function).lower(*avals).as_text())
        return build(function, avals, *args, **keywords)

    monkeypatch.setattr(compiled, "build", reading)
    layers = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(5)).to("jax")
    x = torch.ones(2, 3, device="jax")

    @jaxtorch.jit
    def step() -> None:
        jaxtorch.scan_layers(layers, x).square().sum().backward()
        with torch.no_grad():
            for layer in layers:
                layer.weight -= 0.1 * layer.weight.grad
                layer.weight.grad = None

    step()
    # A slice that begins at a constant is a kernel of its own to XLA: 20 ms for each parameter of each layer.
    assert "stablehlo.slice" not in texts[0]
    assert "stablehlo.dynamic_slice" in texts[0]
    inputs = texts[0][texts[0].index("@main") :].split("->")[0]
    assert len(re.findall(r"%arg\d+: tensor<i32>", inputs)) == 5


def test_jax_transforms_see_through_the_stack() -> None:
    layers = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(3)).to("jax")
    names = [f"{i}.weight" for i in range(3)]

    def torch_loss(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(
            Scanned(layers), {f"layers.{n}": w for n, w in zip(names, weights, strict=True)}, (x,)
        )

    def jax_loss(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = x @ w.T
        return x

    key = jax.random.key(0)
    x, *weights = (jax.random.normal(k, (4, 3, 3)) for k in jax.random.split(key, 4))
    ours = jaxtorch.jax_view(torch_loss)
    for transform in (
        lambda f: jax.vmap(f)(x, *weights),
        lambda f: jax.vmap(f, (None, 0, None, 2))(
            x[0], weights[0], weights[1][0], jnp.moveaxis(weights[2], 0, 2)
        ),
        lambda f: jax.jacrev(f, 2)(x[0], *(w[0] for w in weights)),
        lambda f: jax.jacfwd(f, (0, 3))(x[0], *(w[0] for w in weights)),
    ):
        expected, found = jax.tree.leaves(transform(jax_loss)), jax.tree.leaves(transform(ours))
        for a, b in zip(expected, found, strict=True):
            assert jnp.allclose(a, b, rtol=1e-4, atol=1e-5)


class Scanned(nn.Module):
    """Layers as a loop."""

    def __init__(self, layers: nn.ModuleList):
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.scan_layers(self.layers, x)


def test_each_layer_has_its_own_mask() -> None:
    layers = [nn.Dropout(0.5) for _ in range(8)]
    x = torch.ones(256, device="jax")
    torch.manual_seed(0)
    y = jaxtorch.scan_layers(layers, x)
    torch.manual_seed(0)
    expected = x
    for layer in layers:
        expected = layer(expected)
    torch.testing.assert_close(y, expected)
    assert y.count_nonzero() < 20  # one mask for all would leave half


def test_a_pytree_is_handed_on_and_one_layer_may_stand_twice() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, pair: Any) -> Any:
            return {"x": pair["x"] @ self.weight, "n": pair["n"] + 1}

    torch.manual_seed(0)
    one = Pair().to("jax")
    x = torch.randn(2, 3, device="jax")
    result = jaxtorch.scan_layers([one, one, one], {"x": x, "n": 0})
    assert result["n"].item() == 3
    (gradient,) = torch.autograd.grad(result["x"].sum(), one.weight)
    (expected,) = torch.autograd.grad((x @ one.weight @ one.weight @ one.weight).sum(), one.weight)
    torch.testing.assert_close(result["x"], x @ one.weight @ one.weight @ one.weight)
    torch.testing.assert_close(gradient, expected)


def test_train_and_eval_and_a_changed_rate_are_seen() -> None:
    layers = stack(2)
    x, scale = torch.ones(6, 4, device="jax"), torch.ones(4, device="jax")
    pure = jaxtorch.pure(lambda x: jaxtorch.scan_layers(layers, x, scale))
    pure(x)
    layers.eval()
    torch.testing.assert_close(pure(x), loop(layers, x, scale))
    torch.testing.assert_close(jaxtorch.scan_layers(layers, x, scale), loop(layers, x, scale))
    layers[1].train()
    with pytest.raises(CaptureError, match="training is True in layer 1 and False in layer 0"):
        pure(x)
