"""`out=` of another dtype: what is computed, and rounded, is that of the inputs' common dtype, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Tensor = torch.Tensor

OPERATORS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda a, b, out: torch.add(a, b, out=out),
    "add, alpha": lambda a, b, out: torch.add(a, b, alpha=3, out=out),
    "add of a number": lambda a, b, out: torch.add(a, 7, alpha=3, out=out),
    "sub": lambda a, b, out: torch.sub(a, b, out=out),
    "sub, alpha": lambda a, b, out: torch.sub(a, b, alpha=3, out=out),
    "mul": lambda a, b, out: torch.mul(a, b, out=out),
    "div": lambda a, b, out: torch.div(a, b, out=out),
    "maximum": lambda a, b, out: torch.maximum(a, b, out=out),
    "addcmul": lambda a, b, out: torch.addcmul(a, b, b, value=2, out=out),
    "reciprocal": lambda a, b, out: torch.reciprocal(b, out=out),
    "neg": lambda a, b, out: torch.neg(a, out=out),
}
DIVISIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "floor_divide": lambda a, b, out: torch.floor_divide(a, b, out=out),
    "remainder": lambda a, b, out: torch.remainder(a, b, out=out),
    "fmod": lambda a, b, out: torch.fmod(a, b, out=out),
    "div, floor": lambda a, b, out: torch.div(a, b, rounding_mode="floor", out=out),
    "div, trunc": lambda a, b, out: torch.div(a, b, rounding_mode="trunc", out=out),
}
HALVES = [
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.int32),
]
OTHERS = [
    (torch.float16, torch.bfloat16),
    (torch.float32, torch.float32),
    (torch.int32, torch.int64),
    (torch.uint8, torch.bool),
]
OUT = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64]


def check(function: Callable[[Tensor, Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> None:
    """Compare with the CPU for each dtype of `out`, refusals too."""
    for dtype in OUT:
        out = torch.empty(0, dtype=dtype)
        try:
            expected = function(a, b, out)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                function(a.to("jax"), b.to("jax"), out.to("jax"))
            continue
        actual = function(a.to("jax"), b.to("jax"), out.to("jax"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtypes", HALVES + OTHERS, ids=str)
def test_a_result_is_rounded_to_the_dtype_of_the_inputs(
    name: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    values = torch.linspace(1.01, 130.7, 60)
    a, b = values.to(dtypes[0]), values.flip(0).div(3).ceil().to(dtypes[1])
    if name == "neg" and dtypes[0] == torch.uint8:
        a = a.to(torch.int32)
    check(OPERATORS[name], a, b)


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_a_division_of_integers_finds_no_zero_where_none_is(name: str, dtype: torch.dtype) -> None:
    a, b = torch.arange(60).to(dtype), torch.arange(1, 61).flip(0).to(dtype)
    check(DIVISIONS[name], a, b)


@pytest.mark.parametrize("name", ["sum", "nansum", "cumsum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_out_is_the_dtype_of_an_operator_with_such_an_argument(
    name: str, dtype: torch.dtype
) -> None:
    x = (torch.arange(64) / 8 + 100).half().view(8, 8)
    expected = getattr(torch, name)(x, 0, out=torch.empty(0, dtype=dtype))
    actual = getattr(torch, name)(x.to("jax"), 0, out=torch.empty(0, dtype=dtype, device="jax"))
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-6, atol=0)
