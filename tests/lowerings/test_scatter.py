"""`gather` and `scatter` with indices smaller than the tensor along some dimensions, and longer along the one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Tensor = torch.Tensor
OPERATORS: dict[str, Callable[[Tensor, int, Tensor, Tensor], Tensor]] = {
    "gather": lambda x, dim, i, _: x.gather(dim, i),
    "scatter_add": lambda x, dim, i, values: x.scatter_add(dim, i, values),
    "mean": lambda x, dim, i, values: x.scatter_reduce(dim, i, values, "mean"),
    "prod": lambda x, dim, i, values: x.scatter_reduce(dim, i, values, "prod"),
    "amax": lambda x, dim, i, values: x.scatter_reduce(dim, i, values, "amax", include_self=False),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("size", [(3, 2, 4), (3, 1, 4), (2, 2, 3)])
def test_sizes_of_the_index(size: tuple[int, ...], dim: int, name: str) -> None:
    """The values and the gradients of both tensors are those of the CPU."""
    longer = list(size)
    longer[dim] += 3
    made = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 4, generator=made)
    index = torch.randint(0, x.shape[dim], longer, generator=made)
    values = torch.randn(longer, generator=made)
    results = []
    for device in ("cpu", "jax"):
        leaves = [t.clone().to(device).detach().requires_grad_() for t in (x, values)]
        y = OPERATORS[name](leaves[0], dim, index.to(device), leaves[1])
        used = leaves[:1] if name == "gather" else leaves
        results.append([y, *torch.autograd.grad(y.square().sum(), used)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
