"""Gradients on the device against finite differences, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

Tensor = torch.Tensor


def _positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


# name -> the function, and the shapes of its arguments
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul": (torch.matmul, [(2, 3, 4), (4, 2)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(2,), (2, 3), (3, 2)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 2, 3), (2, 4, 3)]),
    "bilinear": (F.bilinear, [(3, 2), (3, 4), (2, 2, 4), (2,)]),
    "cholesky": (lambda x: torch.linalg.cholesky(_positive(x)), [(2, 3, 3)]),
    "solve": (torch.linalg.solve, [(3, 3), (3, 2)]),
    "solve of a transposed matrix": (lambda a, b: torch.linalg.solve(a.mT, b), [(3, 3), (3,)]),
    "inv": (torch.linalg.inv, [(2, 3, 3)]),
    "det": (torch.linalg.det, [(2, 3, 3)]),
    "slogdet": (lambda x: torch.linalg.slogdet(x.mT).logabsdet, [(3, 3)]),
    "qr": (torch.linalg.qr, [(4, 3)]),
    "eigvalsh": (lambda x: torch.linalg.eigvalsh(_positive(x)), [(3, 3)]),
    "svdvals": (torch.linalg.svdvals, [(3, 2)]),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution, [(4, 2), (4, 1)]),
    "matrix_exp": (torch.linalg.matrix_exp, [(3, 3)]),
    "rfft": (lambda x: torch.view_as_real(torch.fft.rfft(x, norm="ortho")), [(2, 5)]),
    "irfft": (lambda x: torch.fft.irfft(torch.view_as_complex(x), n=7), [(2, 4, 2)]),
    "fft2": (lambda x: torch.fft.fft2(x).abs(), [(3, 4)]),
    "stft": (
        lambda x: torch.view_as_real(
            torch.stft(x, 4, window=torch.ones_like(x[:4]), return_complex=True)
        ),
        [(12,)],
    ),
    "conv2d": (F.conv2d, [(1, 2, 4, 4), (3, 2, 3, 3), (3,)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(3, device=x.device)), [(3, 4)]),
    "attention": (F.scaled_dot_product_attention, [(1, 2, 3, 4)] * 3),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    function, shapes = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    arguments = [
        torch.randn(shape, dtype=torch.float64, generator=generator).to("jax").requires_grad_()
        for shape in shapes
    ]
    assert torch.autograd.gradcheck(function, arguments)


@pytest.mark.parametrize("name", ["matmul", "inv", "matrix_exp", "rfft"])
def test_second_gradients_are_those_of_finite_differences(name: str) -> None:
    function, shapes = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    arguments = [
        torch.randn(shape, dtype=torch.float64, generator=generator).to("jax").requires_grad_()
        for shape in shapes
    ]
    assert torch.autograd.gradgradcheck(function, arguments)
