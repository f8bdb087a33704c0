"""Products of half types, and their gradients, multiply half types: no factor becomes float32."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import jaxtorch

F = nn.functional
Tensor = torch.Tensor
_PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "matmul": (torch.matmul, [(3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "linear": (F.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear without bias": (F.linear, [(2, 3, 4), (5, 4)]),
    "addmm": (torch.addmm, [(3, 5), (3, 4), (4, 5)]),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), [(3, 4), (4, 5)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), [(3, 4), (4, 5)]),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 4, 8)] * 3),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", _PRODUCTS)
def test_factors_stay_half(name: str, dtype: torch.dtype) -> None:
    f, shapes = _PRODUCTS[name]
    inputs = [torch.randn(s, device="jax", dtype=dtype, requires_grad=True) for s in shapes]
    text = jaxtorch.pure(f).lower(*inputs, gradients=True).as_text()
    half = {"bfloat16": "bf16", "float16": "f16"}[str(dtype).removeprefix("torch.")]
    products = re.findall(r"dot_general.*: \((.*)\) ->", text)
    assert len(products) >= 3
    for factors in products:
        assert set(re.findall(r"x([a-z]+\d+)>", factors)) == {half}, factors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", _PRODUCTS)
def test_gradients_are_accurate(name: str, captured: bool, dtype: torch.dtype) -> None:
    """Against float64: within a few units in the last place of the largest element."""
    f, shapes = _PRODUCTS[name]
    torch.manual_seed(0)
    exact = [torch.randn(s).to(dtype).double().requires_grad_() for s in shapes]
    mine = [x.detach().to(dtype).to("jax").requires_grad_() for x in exact]
    expected, result = f(*exact), (jaxtorch.pure(f) if captured else f)(*mine)
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    result.backward(grad.to("jax"))
    for x, y in zip(exact, mine, strict=True):
        error = (y.grad.cpu().double() - x.grad).abs().max() / x.grad.abs().max()
        assert error < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_forward_mode(dtype: torch.dtype) -> None:
    a, b, ta, tb = (torch.randn(4, 4).to(dtype).to("jax") for _ in range(4))
    _, tangent = torch.func.jvp(torch.matmul, (a, b), (ta, tb))
    wide = [x.cpu().double() for x in (a, b, ta, tb)]
    expected = wide[2] @ wide[1] + wide[0] @ wide[3]
    assert (tangent.cpu().double() - expected).abs().max() < 4 * torch.finfo(dtype).eps * 8
