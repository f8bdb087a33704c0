"""`torch.compile(backend="jax")`: sizes and numbers that change from call to call."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import jaxtorch

from .training import compiled, mlp

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("dynamic", [True, None])
def test_dynamic_sizes_compile_once_a_size(dynamic):
    model, _ = mlp()
    fast = compiled(model, dynamic=dynamic)
    sizes = [3, 4, 5, 6, 7]
    start = jaxtorch.compile_count()
    with torch.no_grad():
        for n in sizes * 3:
            x = torch.randn(n, 6)
            torch.testing.assert_close(fast(x), model(x))
    # With dynamic=None Dynamo makes a graph for the first size alone, and another for all of them.
    assert jaxtorch.compile_count() - start == len(sizes) + (dynamic is None)


def test_dynamic_sizes_are_one_graph():
    graphs = []
    from jaxtorch.capture.dynamo import backend

    def counting(graph, examples):
        graphs.append(backend(graph, examples, options={"max_entries": 2}))
        return graphs[-1]

    f = torch.compile(
        lambda x: x.reshape(-1).sum() * x.shape[0] + x[: x.shape[0] - 1].sum(0),
        backend=counting,
        dynamic=True,
    )
    before = jaxtorch.compile_count()
    for n in (3, 4, 5, 6):
        x = torch.randn(n, 5)
        torch.testing.assert_close(f(x), x.reshape(-1).sum() * n + x[: n - 1].sum(0))
    assert len(graphs) == 1
    assert jaxtorch.compile_count() - before == 4
    assert graphs[0].pure.cache_info().currsize == 2


def test_a_float_that_changes_is_an_operand():
    f = compiled(lambda x, s: x * s + 1)
    x = torch.randn(4)
    for s in (0.5, 1.5, 2.5):
        torch.testing.assert_close(f(x, s), x * s + 1)
    before = jaxtorch.compile_count()
    for s in (3.5, 4.5, 5.5):
        torch.testing.assert_close(f(x, s), x * s + 1)
    assert jaxtorch.compile_count() == before


def test_a_float_whose_value_the_code_needs():
    f = compiled(lambda x, eps: F.layer_norm(x, (4,), eps=eps))
    x = torch.randn(2, 4)
    for eps in (1e-5, 0.1, 1.0):
        torch.testing.assert_close(f(x, eps), F.layer_norm(x, (4,), eps=eps))
