"""What `jaxtorch.scan_layers` takes: layers that are alike, with tuples, and clear errors for all others."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError


class Indexed(nn.Linear):
    """A layer that knows its place."""

    def __init__(self, index: int):
        super().__init__(3, 3)
        self.layer_idx = index


class Holding(nn.ReLU):
    """A layer with an attribute."""

    def __init__(self, held: Any):
        super().__init__()
        self.held = held


def times(factor: int) -> Callable[[Any], Any]:
    """Functions of one code, which differ in what their closures hold."""
    return lambda x: x * factor


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda m, i, o: o * 2)
    return layer


def with_forward(layer: nn.Module) -> nn.Module:
    layer.forward = lambda x: x  # type: ignore[method-assign]  # as a user would
    return layer


def two(one: nn.Module, other: nn.Module) -> list[nn.Module]:
    return [one.to("jax"), other.to("jax")]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (two(nn.Linear(3, 3), nn.Linear(3, 4)), r"weight is torch.float32\[4, 3\].* in layer 1"),
        (two(nn.Linear(3, 3), nn.Linear(3, 3, bias=False)), "bias is missing in layer 1"),
        (two(nn.Linear(3, 3), nn.Linear(3, 3).double()), "weight is torch.float64"),
        (two(nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)), "requires_grad in layer 0"),
        (two(nn.Dropout(0.1), nn.Dropout(0.2)), "p is 0.2 in layer 1 and 0.1 in layer 0"),
        (two(nn.ReLU(), nn.Tanh()), "class is Tanh in layer 1 and ReLU in layer 0"),
        (
            two(nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU(), nn.ReLU())),
            "submodule 1 is there in layer 1 and missing in layer 0",
        ),
        (two(Indexed(0), Indexed(1)), r"layer_idx is 1 in layer 1.*ignore="),
        (
            two(Holding([1, 2]), Holding([1, 3])),
            r"held is \[1, 3\] in layer 1 and \[1, 2\] in layer 0",
        ),
        (two(Holding({"a": 1}), Holding({"a": 2})), "held is a different dict in layer 1"),
        (two(Holding(times(2)), Holding(times(3))), "held is a different function in layer 1"),
        (
            two(Holding(partial(torch.add, 1)), Holding(partial(torch.add, 2))),
            "a different partial",
        ),
        (two(Holding(Namespace(a=1)), Holding(Namespace(a=2))), "a different Namespace in layer 1"),
        (
            two(Holding(torch.ones(3)), Holding(torch.ones(3))),
            "held is a different Tensor in layer 1",
        ),
        (two(hooked(nn.ReLU()), nn.ReLU()), "_forward_hooks is None in layer 1"),
        (two(nn.ReLU(), hooked(nn.ReLU())), "_forward_hooks is .*function.* in layer 1"),
        (two(nn.ReLU(), with_forward(nn.ReLU())), "forward is function in layer 1"),
    ],
)
def test_layers_that_differ(layers: list[nn.Module], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        jaxtorch.scan_layers(layers, torch.ones(2, 3, device="jax"))


def test_an_attribute_that_does_not_matter_and_no_layers() -> None:
    layers = two(Indexed(0), Indexed(1))
    x = torch.ones(2, 3, device="jax")
    y = jaxtorch.scan_layers(layers, x, ignore=["layer_idx"])
    torch.testing.assert_close(y, layers[1](layers[0](x)))
    assert jaxtorch.scan_layers([], x) is x
    with pytest.raises(TypeError, match=r"stack of layers must keep shape"):
        jaxtorch.scan_layers([nn.Flatten(0).to("jax")], x)


@pytest.mark.parametrize(
    "make", [lambda: [1, 2], lambda: {"a": [1]}, lambda: times(2), lambda: Namespace(a=1)]
)
def test_layers_whose_attributes_mean_the_same(make: Callable[[], Any]) -> None:
    x = torch.ones(2, 3, device="jax")
    assert torch.equal(jaxtorch.scan_layers(two(Holding(make()), Holding(make())), x), x)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda layer: hooked(layer), "_forward_hooks"),
        (lambda layer: with_forward(layer), "forward is"),
        (lambda layer: layer.held.append(3), "held is"),
        (lambda layer: setattr(layer, "held", [7]), "held is"),
    ],
)
def test_a_change_of_another_layer_than_the_first_is_seen(
    change: Callable[[Any], Any], words: str
) -> None:
    class Layer(Holding):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.held[0]

    layers = two(Layer([2]), Layer([2]))
    x = torch.ones(2, 3, device="jax")
    pure = jaxtorch.pure(lambda x: jaxtorch.scan_layers(layers, x))
    assert torch.equal(pure(x), x * 4)
    change(layers[1])
    with pytest.raises(CaptureError, match=words):
        pure(x)


class Apart(nn.Module):
    """Takes the elements of a tuple as its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, shift: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x).sin() + shift, self.linear(y) + x


class Whole(Apart):
    """Takes a tuple as one argument."""

    def forward(self, pair: Any, shift: float = 0.0) -> Any:  # type: ignore[override]
        return super().forward(*pair, shift)


class Variadic(Apart):
    """Could take either."""

    def forward(self, *args: Any, shift: float = 0.0) -> Any:  # type: ignore[override]
        (pair,) = args
        return super().forward(*pair, shift)


class Single(Apart):
    """Takes and returns a tuple of one element."""

    def forward(self, x: torch.Tensor, *, shift: float) -> Any:  # type: ignore[override]
        return (self.linear(x[0] if isinstance(x, tuple) else x) + shift,)


@pytest.mark.parametrize("kind", [Apart, Whole, Variadic, Single])
@pytest.mark.parametrize("way", ["eager", "pure", "jit", "torch.func"])
def test_layers_that_take_and_return_tuples(kind: type[Apart], way: str) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(kind() for _ in range(3)).to("jax")
    twins = copy.deepcopy(layers)
    count = 1 if kind is Single else 2
    pair = tuple(torch.randn(2, 3, device="jax") for _ in range(count))

    def loss(*pair: torch.Tensor) -> torch.Tensor:
        result = jaxtorch.scan_layers(layers, pair, shift=0.5)
        assert type(result) is tuple
        return sum((t * t).sum() for t in result)

    def expected(*pair: Any) -> torch.Tensor:
        for layer in twins:
            pair = layer(*pair, shift=0.5) if kind is Apart else layer(pair, shift=0.5)
        return sum((t * t).sum() for t in pair)

    if way == "torch.func":
        torch.testing.assert_close(torch.func.grad(loss)(*pair), torch.func.grad(expected)(*pair))
        return
    expected(*pair).backward()
    gradients = [p.grad for p in twins.parameters()]
    if way == "jit":
        step = jaxtorch.jit(lambda *pair: torch.autograd.grad(loss(*pair), [*layers.parameters()]))
        torch.testing.assert_close([*step(*pair)], gradients)
        return
    (jaxtorch.pure(loss) if way == "pure" else loss)(*pair).backward()
    torch.testing.assert_close([p.grad for p in layers.parameters()], gradients)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (None, "a list of modules, such as an nn.ModuleList, not NoneType"),
        (nn.Linear(3, 3), "not Linear"),
        (nn.ModuleDict({"a": nn.Linear(3, 3)}), "not ModuleDict"),
        ([1, 2], "layer 0 is int"),
        ([nn.ReLU(), times(2)], "layer 1 is function: use jaxtorch.scan"),
        ([nn.Linear(3, 3), nn.Linear(3, 3)], "weight of layer 0 is on cpu: move"),
        ([nn.Linear(3, 3).to("jax"), nn.Linear(3, 3)], "weight of layer 1 is on cpu: move"),
        ([nn.BatchNorm1d(3, affine=False)], "running_mean of layer 0 is on cpu: move"),
        ([Apart().to("jax")], r"it is tensor before and \(tensor, tensor\) after"),
    ],
)
@pytest.mark.parametrize("captured", [False, True])
def test_what_is_no_layer(layers: Any, words: str, captured: bool) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        more = (x,) if isinstance(layers, list) and isinstance(layers[0], Apart) else ()
        return jaxtorch.scan_layers(layers, x, *more)

    with pytest.raises(TypeError, match=words):
        (jaxtorch.pure(call) if captured else call)(torch.ones(2, 3, device="jax"))
