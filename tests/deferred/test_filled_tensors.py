"""Tensors of one value in a window: XLA does not know the value, so it does not simplify what reads them.

It would simplify `zeros + x` to `x`, and `zeros - x` to `-x`. Both have another sign where `x` is a zero.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jaxtorch
from jaxtorch.deferred.switch import switch

from . import modes
from .windows import compiled

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("deferred")

VALUES = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), 1e-30])

FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: torch.zeros(8, device=x.device),
    "zeros of no dimensions": lambda x: torch.zeros((), device=x.device),
    "zeros_like": torch.zeros_like,
    "zeros_like of a permuted tensor": lambda x: torch.zeros_like(x.view(2, 4).t()).t().flatten(),
    "new_zeros": lambda x: x.new_zeros(1),
    "ones": lambda x: torch.ones(8, device=x.device),
    "full": lambda x: torch.full((8,), 0.0, device=x.device),
    "full of a negative zero": lambda x: torch.full((8,), -0.0, device=x.device),
    "zero_": lambda x: (2 * x).zero_(),
    "fill_": lambda x: (2 * x).fill_(0),
    "a part that is filled": lambda x: torch.cat([x, x])[4:12].zero_(),
    "bool": lambda x: torch.full((8,), False, device=x.device),
    "integers": lambda x: torch.zeros(8, dtype=torch.int64, device=x.device),
    "complex": lambda x: torch.zeros(8, dtype=torch.complex64, device=x.device),
    "bfloat16": lambda x: torch.ones(8, dtype=torch.bfloat16, device=x.device),
}
USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "z + x": lambda z, x: z + x,
    "x - z": lambda z, x: x - z,
    "z - x": lambda z, x: z - x,
    "z * x": lambda z, x: z * x,
    "x / z": lambda z, x: x / z,
    "add_": lambda z, x: (z.to(torch.result_type(z, x)).expand(8) * 1).add_(x),
    "lerp": lambda z, x: torch.lerp(z.to(x.dtype), x, 0.1),
    "maximum": lambda z, x: torch.maximum(z.to(x.dtype), x),
}


# torch refuses these for the dtype.
REFUSED = {"bool": ("x - z", "z - x"), "complex": ("lerp", "maximum")}


def step(fill: str, x: Tensor) -> list[Tensor]:
    filled = FILLS[fill](x)
    return [use(filled, x) for name, use in USES.items() if name not in REFUSED.get(fill, ())]


@pytest.mark.parametrize("fill", FILLS)
def test_every_zero_has_the_sign_of_immediate_execution(fill: str) -> None:
    # For complex numbers with an infinite part the CPU's results have other parts.
    values = VALUES.nan_to_num(3.0, 4.0, 5.0) if fill == "complex" else VALUES
    x = values.to("jax")
    with modes.deferred("calls"):
        expected = step(fill, x)
        torch.testing.assert_close([e.cpu() for e in expected], step(fill, values), equal_nan=True)
    before = len(compiled())
    for _ in range(4):
        results = step(fill, x)
        switch.boundary()
        for result, e in zip(results, expected, strict=True):
            assert_same(result.cpu(), e.cpu())
    assert len(compiled()) == before + 1


def assert_same(a: Tensor, b: Tensor) -> None:
    """Equal with the signs of zeros. A nan has no sign."""
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    numbers = ~a.isnan()
    assert torch.equal(torch.signbit(a)[numbers], torch.signbit(b)[numbers])


def test_after_captured_code_has_made_the_operator_s_program() -> None:
    x = torch.full((7, 3), -0.0, device="jax")

    def step(x: Tensor) -> Tensor:
        return ((torch.zeros((7, 3), device="jax") + x) * 2 + 0.0) * x.abs()

    jaxtorch.pure(step)(x)
    before = len(compiled())
    for _ in range(4):
        result = step(x)
        switch.boundary()
        assert not torch.signbit(result.cpu()).any()
    assert len(compiled()) == before + 1
