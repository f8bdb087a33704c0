"""Gradients that the user wrote, captured: `autograd.Function` and hooks, against eager torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.capture.errors import CaptureError


class Clipped(torch.autograd.Function):
    """exp, whose gradient is cut at 2 and scaled: not what differentiating the forward gives."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        ctx.scale = scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (result,) = ctx.saved_tensors
        return gradient * result.clamp(max=2) * ctx.scale, None


class Pair(torch.autograd.Function):
    """Two results, new style, one of them not differentiable."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * y, (x > y).long()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        x, y = ctx.saved_tensors
        return gradient * y * 10, gradient * x * 100


def gradients(function: Any, *inputs: torch.Tensor) -> Any:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves)]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, device="jax"), torch.randn(4, device="jax")


def with_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    product, larger = Pair.apply(Clipped.apply(x * 2, 3.0), y)
    return (product * larger + product.sin()).sum()


def with_hook(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = x * y
    hidden.register_hook(lambda g: g * 5 + 1)
    other = hidden.sin()
    other.register_hook(lambda g: None)
    return (other * hidden).sum()


@pytest.mark.parametrize("function", [with_function, with_hook])
def test_as_eagerly(function: Any) -> None:
    for ours, theirs in zip(
        gradients(jaxtorch.pure(function), *inputs()), gradients(function, *inputs()), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("function", [with_function, with_hook])
def test_in_a_step(function: Any) -> None:
    x, y = (t.requires_grad_() for t in inputs())

    @jaxtorch.jit
    def step() -> None:
        function(x, y).backward()

    step()
    _, *expected = gradients(function, *inputs())
    for leaf, theirs in zip((x, y), expected, strict=True):
        torch.testing.assert_close(leaf.grad, theirs)


def test_hooks_of_leaves_run_in_torch_backward() -> None:
    x, y = (t.requires_grad_() for t in inputs())
    x.register_hook(lambda g: g * 7)
    f = jaxtorch.pure(lambda x, y: (x * y).sum())
    f(x, y).backward()
    torch.testing.assert_close(x.grad, y.detach() * 7)


def test_what_cannot_be_honoured_is_said() -> None:
    x = inputs()[0].requires_grad_()

    def late(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.sin()
        y.register_hook(lambda g: g)
        return z

    with pytest.raises(CaptureError, match="hook"):
        jaxtorch.pure(late)(x)


def test_torch_is_as_it_was() -> None:
    before = vars(torch.autograd.Function).get("apply")
    hook = torch.Tensor.register_hook
    jaxtorch.pure(with_function)(*(t.requires_grad_() for t in inputs()))
    assert torch.Tensor.register_hook is hook
    assert vars(torch.autograd.Function).get("apply") is before
