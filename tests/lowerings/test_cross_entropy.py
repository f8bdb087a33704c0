"""Cross entropy, eagerly and captured, against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jaxtorch

DOORS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}
CASES = list(itertools.product((True, False), ("mean", "sum", "none"), (0.0, 0.1), (-100, 1)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("weighted", "reduction", "smoothing", "ignored"), CASES)
@pytest.mark.parametrize("shape", [(5, 3), (3,), (2, 3, 4)])
def test_values_and_gradients(
    door: str,
    weighted: bool,
    reduction: str,
    smoothing: float,
    ignored: int,
    shape: tuple[int, ...],
    fresh_dynamo: None,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    target = torch.randint(3, shape[:1] + shape[2:] if len(shape) > 1 else ())
    weight = torch.tensor([0.5, 2.0, 1.5]) if weighted else None

    def results(device: str, door: str) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.to(device).requires_grad_()
        chosen = None if weight is None else weight.to(device)

        def loss(leaf: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(leaf, target, chosen, None, ignored, None, reduction, smoothing)

        def with_gradient(leaf: torch.Tensor, target: torch.Tensor) -> Any:
            value = loss(leaf, target)
            return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

        if door == "jit":
            return DOORS[door](with_gradient)(leaf, target.to(device))
        value = DOORS[door](loss)(leaf, target.to(device))
        return value.detach().cpu(), torch.autograd.grad(value.sum(), leaf)[0].cpu()

    expected = results("cpu", "eager")
    for ours, theirs in zip(results("jax", door), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_probabilities(smoothing: float) -> None:
    torch.manual_seed(0)
    x, target, weight = torch.randn(5, 3), torch.randn(5, 3).softmax(1), torch.rand(3)
    ours = [t.to("jax") for t in (x, target, weight)]
    loss = jaxtorch.pure(lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=smoothing))
    torch.testing.assert_close(
        loss(*ours).cpu(), F.cross_entropy(x, target, weight, label_smoothing=smoothing)
    )


def test_second_derivatives_and_transforms() -> None:
    torch.manual_seed(0)
    x, target, weight = torch.randn(5, 3), torch.randint(3, (5,)), torch.rand(3)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target.to(x.device), weight.to(x.device), label_smoothing=0.1)

    for transform in (torch.func.grad(loss), torch.func.hessian(loss)):
        torch.testing.assert_close(transform(x.to("jax")).cpu(), transform(x))
