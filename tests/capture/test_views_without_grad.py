"""Views taken under `no_grad` in captured code: torch says that they require a gradient, and lets none through."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jaxtorch

Tensor = torch.Tensor


def of_an_argument(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x[:2]
    return (x * 3).sum() + (y * 5).sum()


def of_a_result(x: Tensor) -> Tensor:
    h = x * 2
    with torch.no_grad():
        y = h.view(2, 2).t()
    return (h * 3).sum() + (y * y).sum()


def and_views_of_them(x: Tensor) -> Tensor:
    h = x.sin()
    with torch.no_grad():
        y = h.view(2, 2)
    return (h * 3).sum() + (y[0].flip(0)[:1] * h[1:2]).sum() + y.t()[1].exp().sum()


def beside_views_with_one(x: Tensor) -> Tensor:
    y = x.view(2, 2)
    with torch.no_grad():
        z = y[0]
    return (y[0] * z).sum() + (y.t()[1] * z).sum()


def in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(and_views_of_them, x, use_reentrant=False) + x.sum()


CASES = [of_an_argument, of_a_result, and_views_of_them, beside_views_with_one, in_a_checkpoint]


@pytest.mark.parametrize("function", CASES)
def test_no_gradient_flows_through_them(function: Callable[[Tensor], Tensor]) -> None:
    gradients = []
    for device, f in (("cpu", function), ("jax", function), ("jax", jaxtorch.pure(function))):
        x = torch.arange(1.0, 5.0).to(device).requires_grad_()
        f(x).backward()
        gradients.append(x.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], check_device=False)


def test_a_parameter_that_is_a_view_has_its_gradient() -> None:
    gradients = []
    for device in ("cpu", "jax"):
        flat = torch.arange(1.0, 5.0).to(device)
        weight = flat.view(2, 2).requires_grad_()

        def f(x: Tensor, weight: Tensor = weight) -> Tensor:
            return (weight[0] * x).sum() + weight.t().exp().sum()

        x = torch.ones(2, device=device)
        (f if device == "cpu" else jaxtorch.pure(f))(x).backward()
        gradients.append(weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], check_device=False)
