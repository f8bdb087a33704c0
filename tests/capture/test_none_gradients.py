"""A parameter that no gradient flows to has none (None, not zeros): an optimizer leaves it as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import jaxtorch

Tensors = dict[str, torch.Tensor]
CaseOf = Callable[[Tensors], Any]


class Swapped(torch.autograd.Function):
    """Two results and two inputs; the first input gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> Any:
        return None, first + second * 2


class Apart(torch.autograd.Function):
    """Each result has a gradient to one input alone, and says so where it sees what is asked for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor | None, second: torch.Tensor | None) -> Any:
        return None if first is None else first * 2, None if second is None else second * 3


def _scan(t: Tensors) -> Any:
    def step(carry: Any, x: torch.Tensor) -> Any:
        a, b = carry
        return (a * t["a"], b + x * t["b"]), (x * t["c"], b)

    (a, _), (ys, _) = jaxtorch.scan(step, (t["d"], t["b"]), torch.ones(3, 2, device=t["a"].device))
    return a, ys


def _loop(t: Tensors) -> Any:
    a, ys = t["d"], []
    for _ in range(3):
        a = a * t["a"]
        ys.append(t["c"] * 1)
    return a, torch.stack(ys)


def _chain(t: Tensors) -> Any:
    """The first carry reaches what the second reads, one iteration later."""

    def step(carry: Any, x: torch.Tensor) -> Any:
        _a, b = carry
        return (b * x, b * t["c"]), None

    (a, b), _ = jaxtorch.scan(step, (t["a"], t["b"]), torch.ones(3, 2, device=t["a"].device))
    return b, a


def _chained(t: Tensors) -> Any:
    a, b = t["a"], t["b"]
    for _ in range(3):
        a, b = b * 1, b * t["c"]
    return b, a


def _cond(t: Tensors) -> Any:
    flag = torch.ones((), device=t["a"].device) > 0
    return torch.cond(
        flag,
        lambda a, b: (a * 2, b * t["c"]),
        lambda a, b: (a * 3, b * t["c"]),
        (t["a"], t["b"]),
    )


CASES: dict[str, tuple[CaseOf, CaseOf]] = {
    name: case if isinstance(case, tuple) else (case, case)
    for name, case in {
        "apart": lambda t: (t["a"] * 2, t["b"] * 3),
        "shared": lambda t: (t["a"] * t["c"], t["b"] * t["c"]),
        "detached": lambda t: (t["a"] * t["b"].detach(), t["b"] * 2),
        "the leaf itself": lambda t: (t["a"], t["b"]),
        "views": lambda t: ((t["a"] * t["b"]).view(1, 2).T[0], t["c"].view(2, 1)),
        "checkpoint": lambda t: checkpoint(
            lambda a, b: (a * t["d"], b * t["c"]), t["a"], t["b"], use_reentrant=False
        ),
        "Function": lambda t: Swapped.apply(t["a"], t["b"]),
        "its inputs": lambda t: Swapped.apply(t["a"] * t["c"], t["b"] * 2),
        "its None": lambda t: Apart.apply(t["a"], t["b"]),
        "std_mean": lambda t: torch.std_mean(t["a"] * t["b"]),
        "scan": (_scan, _loop),
        "chain": (_chain, _chained),
        "cond": (_cond, lambda t: (t["a"] * 2, t["b"] * t["c"])),
    }.items()
}


def leaves_on(device: str) -> Tensors:
    return {
        name: torch.tensor([1.5, 2.5], device=device).add(i).requires_grad_()
        for i, name in enumerate("abcd")
    }


def loss(results: Any, uses: tuple[int, ...]) -> torch.Tensor:
    return sum((results[i].sum() * 2 for i in uses), torch.zeros((), device=results[0].device))


def gradients(leaves: Tensors) -> Any:
    found = [None if t.grad is None else t.grad.cpu() for t in leaves.values()]
    for t in leaves.values():
        t.grad = None
    return found


def check(found: Any, expected: Any) -> None:
    assert [g is None for g in found] == [g is None for g in expected]
    for mine, their in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, their)


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager_torch(name: str) -> None:
    ours, theirs = CASES[name]
    there, here = leaves_on("cpu"), leaves_on("jax")
    pure = jaxtorch.pure(lambda: ours(here))
    for uses in ((0,), (1,), (0, 1)):
        loss(pure(), uses).backward()
        found = gradients(here)
        loss(theirs(there), uses).backward()
        check(found, gradients(there))


@pytest.mark.parametrize("name", CASES)
def test_in_a_step(name: str) -> None:
    ours, theirs = CASES[name]
    there, here = leaves_on("cpu"), leaves_on("jax")
    jaxtorch.jit(lambda: loss(ours(here), (1,)).backward())()
    loss(theirs(there), (1,)).backward()
    check(gradients(here), gradients(there))


def test_adamw_leaves_what_the_loss_does_not_need() -> None:
    models = []
    for device in ("cpu", "jax"):
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(3, 2), "other": nn.Linear(3, 2)}).to(device)

        def both(x: torch.Tensor, model: Any = model) -> Any:
            return model["used"](x), model["other"](x)

        both = both if device == "cpu" else jaxtorch.pure(both)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        for _ in range(2):
            result, _ = both(torch.ones(1, 3, device=device))
            result.sum().backward()
            optimizer.step()
        models.append(model.to("cpu"))
    theirs, ours = models
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name), parameter)


def test_layers_that_do_not_use_a_parameter() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, carry: Any) -> Any:
            x, y = carry
            return self.used(x), self.other(y)

    layers = [Layer().to("jax") for _ in range(3)]
    x = torch.ones(1, 2, device="jax")
    for call in (jaxtorch.scan_layers, jaxtorch.pure(lambda l, x: jaxtorch.scan_layers(l, x))):
        for layer in layers:
            layer.zero_grad()
        call(layers, (x, x))[0].sum().backward()
        for layer in layers:
            assert layer.used.weight.grad is not None
            assert layer.other.weight.grad is None
