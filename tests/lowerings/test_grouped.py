"""Grouped products against torch's CPU, eagerly and in captured code, and their gradients."""

from __future__ import annotations

import pytest
import torch

import jaxtorch
from jaxtorch.capture.tpu import shared_compiler
from tests.libtpu import needs_libtpu


def shapes():
    yield pytest.param((8, 16), (3, 16, 8), [2, 2, 8], id="rows")
    yield pytest.param((3, 8, 16), (16, 8), [4, 4, 8], id="columns")
    yield pytest.param((8, 16), (16, 8), [4, 4, 16], id="sum")
    yield pytest.param((3, 8, 16), (3, 16, 8), None, id="batch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("a", "b", "ends"), list(shapes()))
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


@pytest.fixture(scope="module")
def compiler():
    with shared_compiler():
        yield


@needs_libtpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("a", "b", "ends"), list(shapes()))
def test_a_tpu_has_them_and_their_operations_are_known(compiler, a, b, ends, dtype):
    x = torch.empty(a, dtype=dtype, device="meta", requires_grad=True)
    y = torch.empty(b, dtype=dtype, device="meta", requires_grad=True)
    offs = None if ends is None else torch.empty(len(ends), dtype=torch.int32, device="meta")
    lowered = jaxtorch.pure(lambda x, y, o: torch._grouped_mm(x, y, offs=o)).lower(
        x, y, offs, target="v5e:1x1", gradients=True
    )
    products = 3
    if ends is None:  # one in each of 3 groups
        products = 3 * 3
    elif a == (8, 16) and b == (16, 8):  # groups along the sum: XLA multiplies all rows for each
        products = 3 + 2
    assert jaxtorch.fit(lowered).flops == products * 2 * 8 * 16 * 8
