"""Numbers among the arguments and the results of captured code."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jaxtorch

from .number_programs import CALLS, State, Tensor


def of_steps(x: Tensor, n: int, scale: float = 1.0) -> Tensor:
    return x * (1 - 0.9**n) + scale * n / (1 + n)


def of_a_ramp(x: Tensor, n: int, scale: float = 1.0) -> Tensor:
    return x * min(1.0, n / 5) * scale if n < 6 else -x


def of_alpha(x: Tensor, n: int, scale: float = 1.0) -> Tensor:
    return x.add(x, alpha=scale).sub(x, alpha=n)


def of_roots(x: Tensor, n: int, scale: float = 1.0) -> Tensor:
    return x / math.sqrt(n) + math.exp(-scale)


def of_a_range(x: Tensor, n: int, scale: float = 1.0) -> Tensor:
    return sum((x * i for i in range(n)), x) * scale


def of_a_size(x: Tensor, n: int, scale: float = 1.0) -> Tensor:
    return torch.ones(n, device=x.device).sum() * x * scale


def of_a_type(x: Tensor, n: int, scale: float = 1.0) -> Tensor:
    return x * n * scale if type(n) is int and isinstance(scale, float) else x


ARGUMENTS: dict[str, tuple[Callable[..., Tensor], int]] = {
    f.__name__: (f, traces)
    for f, traces in (
        (of_steps, 2),
        (of_a_ramp, 4),
        (of_alpha, 2),
        (of_roots, 2),
        (of_a_range, CALLS + 1),
        (of_a_size, CALLS + 1),
        (of_a_type, CALLS + 1),
    )
}


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.filterwarnings("ignore:.*was traced .* times")
def test_numbers_among_the_arguments(name: str, capture: Any) -> None:
    program, traces = ARGUMENTS[name]
    captured, x = capture(program), torch.tensor([2.0, 3.0], dtype=torch.float64)
    for n in range(1, CALLS + 1):
        result = captured(x.to("jax"), n, scale=0.5 * n)
        torch.testing.assert_close(result.cpu(), program(x, n, scale=0.5 * n))
    assert captured.cache_info().misses <= traces
    torch.testing.assert_close(captured(x.to("jax"), 2, scale=1.0).cpu(), program(x, 2))


def test_signs_of_zero_and_roots_of_negative_numbers() -> None:
    f = jaxtorch.jit(lambda x, n: x * n)
    x = torch.ones(1, device="jax")
    signs = [math.copysign(1, f(x, n).item()) for n in (1.0, 0.0, -0.0, 0.0)]
    assert signs == [1, 1, -1, 1]
    g = jaxtorch.jit(lambda x, n: (x * (-4.0) ** n).abs())
    for n in (1.0, 2.0, 3.0):
        assert g(x, n).item() == 4.0**n
    assert g(x, 0.5).item() == pytest.approx(2.0)  # a complex number


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_an_error_of_the_code_is_the_only_one(capture: Any) -> None:
    @capture
    def f(x: Tensor, n: int) -> Tensor:
        if n == 3:
            raise LookupError("the user's")
        return x * n

    x = torch.ones(2, device="jax")
    for n in (1, 2):
        f(x, n)
    with pytest.raises(LookupError, match="the user's") as caught:
        f(x, 3)
    assert caught.value.__context__ is None


def test_operands_are_named() -> None:
    state = State()
    step = jaxtorch.jit(lambda x, rate: x * rate * state.scale)
    x = torch.ones(2, device="jax")
    for n in (1.0, 2.0):
        state.scale = n
        step(x, n)
    names = step.lower(x, 3.0).as_text()
    assert "rate" in names
    assert "state.scale" in names


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_numbers_that_are_returned(capture: Any) -> None:
    state = State()

    def program(x: Tensor, n: int) -> tuple[Tensor, dict[str, object], int]:
        state.n += 2
        return x * n, {"twice": 2 * n, "count": state.n, "constant": 7}, n

    captured, x = capture(program), torch.ones(2, device="jax")
    for n in range(1, CALLS):
        y, numbers, same = captured(x, n)
        assert y.tolist() == [n] * 2
        assert numbers == {"twice": 2 * n, "count": 2 * n, "constant": 7}
        assert (same, type(same)) == (n, int)
    assert captured.cache_info().misses == 2


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.filterwarnings("ignore:.*was traced .* times")
def test_an_object_with_a_number_that_is_returned(capture: Any) -> None:
    captured, x = (
        capture(lambda x, n: (x * n, SimpleNamespace(n=n + 1))),
        torch.ones(2, device="jax"),
    )
    for n in range(1, CALLS):
        assert vars(captured(x, n)[1]) == {"n": n + 1}
