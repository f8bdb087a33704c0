"""At a kink captured code has torch's derivative."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jaxtorch

X = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, 6.0, 0.5, -0.5])

KINKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "relu": torch.relu,
    "l1_loss": lambda x: F.l1_loss(x, x.detach().relu()),
    "norm of zeros": lambda x: (x * 0).norm(),
    "norm 1": lambda x: x.norm(1),
    "norm 0.5": lambda x: x.norm(0.5),
    "norm -0.5": lambda x: torch.linalg.vector_norm(x, -0.5),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp by tensors": lambda x: x.clamp(torch.zeros_like(x), torch.ones_like(x)),
    "relu of max_pool": lambda x: F.max_pool1d(x.relu()[None], 2),
}


@pytest.mark.parametrize("name", KINKS)
def test_gradients(name: str) -> None:
    def gradient(device: str, pure: bool) -> torch.Tensor:
        x = X.to(device, copy=True).requires_grad_()
        function = jaxtorch.pure(KINKS[name]) if pure else KINKS[name]
        function(x).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    torch.testing.assert_close(gradient("jax", True), gradient("cpu", False))


def test_bounds_that_are_nan() -> None:
    nan = float("nan")
    x, low, high = torch.tensor([[1.0, nan, 1.0], [nan, 0.0, 0.0], [2.0, 2.0, nan]])
    found = x.to("jax").clamp(low.to("jax"), high.to("jax")).cpu()
    torch.testing.assert_close(found, x.clamp(low, high), equal_nan=True)
