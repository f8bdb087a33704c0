"""Singular values: the derivative beyond the square factorization, and the algorithm that only a TPU runs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxtorch
from jaxtorch.lowerings.svd import _by_polar

SHAPES = [(4, 4), (6, 3), (3, 6), (5, 1)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_captured_factors(
    shape: tuple[int, int], full: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    a = torch.randn(2, *shape, dtype=dtype)
    rank = min(shape)
    left, right = torch.randn(2, shape[0], shape[0]), torch.randn(2, shape[1], shape[1])

    def loss(a: torch.Tensor) -> torch.Tensor:
        u, s, vh = torch.linalg.svd(a, full_matrices=full)
        # The phases that the factors leave open must not count.
        u, vh = u[..., :rank].abs(), vh[..., :rank, :].abs()
        return (left.to(a.device) @ u).sin().sum() + s.sum() + (vh @ right.to(a.device)).sin().sum()

    left, right = left.double(), right.double()
    found = a.to("jax").requires_grad_()
    jaxtorch.pure(loss)(found).backward()
    expected = a.clone().requires_grad_()
    loss(expected).backward()
    assert found.grad is not None
    torch.testing.assert_close(found.grad.cpu(), expected.grad)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (4, 4, "singular"), (5, 3, "singular")])
def test_the_algorithm_of_a_tpu(shape: tuple[int, ...], full: bool) -> None:
    a = np.random.default_rng(0).normal(size=shape[:2]).astype(np.float32)
    if "singular" in shape:
        a[:, 1] = a[:, 0]
    u, s, vh = _by_polar(jnp.asarray(a), full)
    expected = np.linalg.svd(a, full_matrices=full)
    assert [x.shape for x in (u, s, vh)] == [x.shape for x in expected]
    np.testing.assert_allclose(s, expected[1], atol=1e-5)
    rank = min(shape[:2])
    np.testing.assert_allclose(u[:, :rank] * s @ vh[:rank], a, atol=1e-5)
    for factor in (u.T @ u, vh @ vh.T):
        np.testing.assert_allclose(factor, jnp.eye(len(factor)), atol=1e-5)
