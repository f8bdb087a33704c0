"""torch conjugates and negates lazily: a bit on the tensor, which the memory knows nothing of. The border must."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxtorch

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def z() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 4, dtype=torch.complex64)


LAZY: dict[str, Function] = {
    "conjugated": lambda x: x.conj(),
    "negated": lambda x: x.conj().imag,
    "both": lambda x: x.mT.conj(),
    "neither": lambda x: x.clone(),
    "made by torch": lambda x: torch.fft.ifft(x.real),
}


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("function", LAZY.values(), ids=LAZY)
def test_a_result(function: Function, capture: Callable[..., Function], z: torch.Tensor) -> None:
    torch.testing.assert_close(capture(function)(z.to("jax")).cpu(), function(z).resolve_conj())


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_an_argument(capture: Callable[..., Function], z: torch.Tensor) -> None:
    double = capture(lambda x: x * 2)
    device = z.to("jax")
    for function in (
        *LAZY.values(),
        *LAZY.values(),
    ):  # the second time by the programs that are there
        torch.testing.assert_close(double(function(device)).cpu(), function(z) * 2)


@pytest.mark.parametrize("function", LAZY.values(), ids=LAZY)
def test_gradients(function: Function, z: torch.Tensor) -> None:
    def gradient(device: str, loss: Function) -> torch.Tensor:
        leaf = z.to(device, copy=True).requires_grad_()
        loss(leaf).backward()
        assert leaf.grad is not None
        return leaf.grad.cpu()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.arange(x.shape[-1], device=x.device)).abs().square().sum()

    expected = gradient("cpu", lambda x: loss(function(x)))
    pure_loss, pure_function = jaxtorch.pure(loss), jaxtorch.pure(function)
    torch.testing.assert_close(gradient("jax", lambda x: loss(pure_function(x))), expected)
    torch.testing.assert_close(gradient("jax", lambda x: pure_loss(function(x))), expected)


@pytest.mark.parametrize("function", LAZY.values(), ids=LAZY)
def test_functions_of_jax(function: Function, z: torch.Tensor) -> None:
    expected = function(z).resolve_conj().resolve_neg()
    copied = jaxtorch.call_jax(lambda x: jnp.multiply(x, 1), function(z.to("jax")))
    torch.testing.assert_close(copied.cpu(), expected)
    seen = jaxtorch.jax_view(function)(jnp.asarray(z.numpy()))
    np.testing.assert_allclose(seen, expected.numpy(), rtol=1e-6)
