"""Where a derivative has to be chosen, captured code has torch's: that of the CPU, also for what is infinite or NaN.

Of equal elements `topk` and `kthvalue` return any, and torch promises no index: they are compared without ties.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch

from .nondifferentiable import FAMILIES, TIES, Family

Lists = list[torch.Tensor]


def _weighted(y: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, y.numel() + 1, device=y.device).reshape(y.shape) * y / 8


def _backward(family: Family, xs: Lists, wrapper: Callable[..., Any] | None = None) -> None:
    def outputs(*xs: torch.Tensor) -> Lists:
        return [f(x) for (f, _), x in zip(family.values(), xs, strict=True)]

    results = (outputs if wrapper is None else wrapper(outputs))(*xs)
    sum(_weighted(y).sum() for y in results).backward()


def _gradients(family: Family, mode: str) -> dict[str, torch.Tensor | None]:
    device = "cpu" if mode == "cpu" else "jax"
    xs = [x.to(device, copy=True).requires_grad_() for _, x in family.values()]
    if mode == "jit":
        jaxtorch.jit(lambda *xs: _backward(family, list(xs)))(*xs)
    else:
        _backward(family, xs, jaxtorch.pure if mode == "pure" else None)
    return dict(zip(family, (None if x.grad is None else x.grad.cpu() for x in xs), strict=True))


def _differing(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, str]:
    wrong = {}
    for name, gradient in expected.items():
        other = found[name]
        gradient, other = (
            torch.zeros(()) if g is None else g for g in (gradient, other)
        )  # None is 0
        gradient, other = torch.broadcast_tensors(gradient, other)
        if not torch.allclose(other, gradient, 1e-4, 1e-5, equal_nan=True):
            wrong[name] = f"{other.tolist()} and not {gradient.tolist()}"
    return wrong


# In a step torch's own formulas run. Those of products and of an extremum of all elements ask for values (is there a
# zero, is it NaN): the step is refused, with the line.
_ASKS = re.compile(r"prod|(max|min|median) along None")


@pytest.mark.parametrize("mode", ["pure", "jit"])
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients(name: str, mode: str) -> None:
    family = FAMILIES[name]
    if mode == "jit":
        family = {name: kink for name, kink in family.items() if not _ASKS.search(name)}
    assert not _differing(_gradients(family, mode), _gradients(family, "cpu"))


_EAGER: Family = {
    "logit": FAMILIES["unary"]["logit"],
    "a mask times inf": FAMILIES["unary"]["a mask times inf"],
    "amax of nan": FAMILIES["reductions"]["amax along 1 of nan"],
}


def test_eager_gradients() -> None:
    assert not _differing(_gradients(_EAGER, "jax"), _gradients(_EAGER, "cpu"))


_SCANNED = ("hardswish", "hardsigmoid", "selu", "hardtanh", "clamp by tensors", "elu 2")


def test_gradients_through_a_scan() -> None:
    functions = [FAMILIES["activations"][name][0] for name in _SCANNED]

    def eager(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([sum(f(row) for f in functions) for row in x])

    def scanned(x: torch.Tensor) -> torch.Tensor:
        def body(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return carry, sum(f(row) for f in functions)

        return jaxtorch.scan(body, x[0] * 0, x)[1]

    points = torch.tensor([[0.0, -0.0, 1, -1], [3, -3, 2, 0.5]])
    gradients = []
    for device, function in (("cpu", eager), ("jax", jaxtorch.pure(scanned))):
        x = points.to(device, copy=True).requires_grad_()
        _weighted(function(x)).sum().backward()
        gradients.append(x.grad.cpu())  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_topk_gives_the_gradient_to_what_it_returns() -> None:
    x = TIES.to("jax").requires_grad_()
    values, index = jaxtorch.pure(lambda x: x.topk(2))(x)
    values.sum().backward()
    expected = torch.zeros(4, 4).scatter(1, index.cpu(), 1.0)
    torch.testing.assert_close(x.grad.cpu(), expected)  # type: ignore[union-attr]


SMOOTH = {
    "pow": lambda x: x[0] ** x[1],
    "hypot": lambda x: torch.hypot(x[0], x[1]),
    "atan2": lambda x: torch.atan2(x[0], x[1]),
    "logaddexp": lambda x: torch.logaddexp(x[0], x[1]),
    "var": lambda x: x.var() * x.var(1)[0],
    "elu": lambda x: torch.nn.functional.elu(x - 1, 2.0) ** 2,
    "hardswish": lambda x: torch.nn.functional.hardswish(x) ** 2,
    "erfinv": lambda x: torch.erfinv(x / 4),
    "ndtri": lambda x: torch.special.ndtri(x / 4),
    "logit": lambda x: torch.logit(x / 4),
    "entr": torch.special.entr,
    "lgamma": torch.lgamma,
    "xlogy": lambda x: torch.xlogy(x[0], x[1]),
    "prod": lambda x: x.prod(),
    "bce": lambda x: torch.nn.functional.binary_cross_entropy(x / 4, x.detach() / 5),
    "amax": lambda x: x.amax(1) ** 3,
    "clamp": lambda x: x.clamp(1, 2) ** 3,
}


def test_second_derivatives() -> None:
    """Where torch has them, and the function is smooth."""
    points = torch.tensor([[0.7, 1.1, 2.3], [1.9, 0.4, 0.6]], dtype=torch.float64)

    def second(device: str, wrapper: Callable[..., Any]) -> dict[str, torch.Tensor]:
        found = {}
        for name, function in SMOOTH.items():
            x = points.to(device, copy=True).requires_grad_()
            y = _weighted(wrapper(function)(x)).sum()
            (first,) = torch.autograd.grad(y, x, create_graph=True)
            found[name] = torch.autograd.grad(_weighted(first).sum(), x)[0].cpu()
        return found

    assert not _differing(second("jax", jaxtorch.pure), second("cpu", lambda f: f))


def test_bounds_that_are_nan() -> None:
    nan = float("nan")
    x, low, high = torch.tensor([[1.0, nan, 1.0], [nan, 0.0, 0.0], [2.0, 2.0, nan]])
    found = x.to("jax").clamp(low.to("jax"), high.to("jax")).cpu()
    torch.testing.assert_close(found, x.clamp(low, high), equal_nan=True)
