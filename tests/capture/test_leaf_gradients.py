"""Captured code that reads the `.grad` of its arguments, and code that only computes gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import grad

import jaxtorch

DOORS = [jaxtorch.pure, jaxtorch.jit]


def leaf(value: float = 1.0) -> torch.Tensor:
    return torch.full((3,), value, device="jax", requires_grad=True)


@pytest.mark.parametrize("door", DOORS)
def test_the_gradient_of_an_argument_is_that_of_the_call(door: Callable[..., Any]) -> None:
    def code(w: torch.Tensor) -> torch.Tensor:
        return w * 2 if w.grad is None else w * w.grad

    captured, without, with_one = door(code), leaf(), leaf()
    for value in (4.0, 6.0):
        with_one.grad = torch.full_like(with_one, value)
        for w in (without, with_one, without, with_one):
            assert torch.equal(captured(w), code(w))
    with_one.grad = None
    assert torch.equal(captured(with_one), code(with_one))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("called", ["torch.autograd.grad", "grad"])
def test_code_that_computes_a_gradient_is_traced_once(
    door: Callable[..., Any], called: str
) -> None:
    names: dict[str, Any] = {"torch": torch, "grad": grad}
    exec(f"def code(x): return {called}((x * x * x).sum(), x, create_graph=True)[0]", names)
    captured = door(names["code"])
    for k in range(4):
        x = leaf(float(k))
        torch.testing.assert_close(captured(x), 3 * x.detach() ** 2, check_stride=False)
    assert captured.cache_info().misses == 1
