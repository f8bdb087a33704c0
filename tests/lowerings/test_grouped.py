"""Grouped products against torch's CPU, eagerly and in captured code, and their gradients."""

from __future__ import annotations

import pytest
import torch

import jaxtorch


def shapes():
    yield pytest.param((8, 16), (3, 16, 8), [2, 2, 8], id="rows")
    yield pytest.param((3, 8, 16), (16, 8), [4, 4, 8], id="columns")
    yield pytest.param((8, 16), (16, 8), [4, 4, 16], id="sum")
    yield pytest.param((3, 8, 16), (3, 16, 8), None, id="batch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("a", "b", "ends"), shapes())
def test_products_and_gradients(a, b, ends, dtype):
    torch.manual_seed(0)
    tensors = torch.randn(a, dtype=dtype), torch.randn(b, dtype=dtype)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)

    def run(function, device):
        x, y = (t.to(device).requires_grad_() for t in (t.detach().clone() for t in tensors))
        out = function(x, y, None if offs is None else offs.to(device))
        out.float().square().sum().backward()
        return [t.detach().cpu() for t in (out, x.grad, y.grad)]

    def f(x, y, offs):
        return torch._grouped_mm(x, y, offs=offs)

    expected = run(f, "cpu")
    for function in (f, jaxtorch.pure(f)):
        torch.testing.assert_close(run(function, "jax"), expected)
    assert not any("grouped" in name for name in jaxtorch.fallbacks())
