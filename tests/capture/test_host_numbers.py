"""Python numbers that vary from call to call, in captured code.

Each program runs eagerly on the CPU and captured. Both must agree at each call, and a program that serves all values is
traced a few times only.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtorch
from jaxtorch.capture.dependencies.host_number import holds_host_number

from .number_programs import CALLS, STEADY, VALUES, State, Tensor, counts


def _run(
    program: Callable[[State, Tensor], Tensor], capture: Callable[..., Any], x: Tensor
) -> tuple[list[list[float]], dict[str, object], Any]:
    state = State()
    captured = capture(lambda x: program(state, x))
    results = [captured(x).tolist() for _ in range(CALLS)]
    return results, vars(state), captured


def _check(
    program: Callable[[State, Tensor], Tensor], capture: Callable[..., Any], dtype: torch.dtype
) -> Any:
    x = torch.tensor([2.0, 3.0, 5.0], dtype=dtype)
    expected, numbers, _ = _run(program, lambda f: f, x)
    results, ours, captured = _run(program, capture, x.to("jax"))
    rtol = 1e-12 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(torch.tensor(results), torch.tensor(expected), rtol=rtol, atol=1e-5)
    assert ours == numbers
    assert not holds_host_number(list(ours.values()))
    assert list(map(type, ours.values())) == list(map(type, numbers.values()))
    return captured


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("name", STEADY)
def test_a_program_that_serves_all_values(name: str, capture: Any, dtype: torch.dtype) -> None:
    program, traces = STEADY[name]
    captured = _check(program, capture, dtype)
    assert captured.cache_info().misses <= traces


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.filterwarnings("ignore:.*was traced .* times")
def test_code_that_needs_the_value(name: str, capture: Any) -> None:
    _check(VALUES[name], capture, torch.float32)


# -- arithmetic -----------------------------------------------------------------------------------------------


def small_power(base: float, exponent: float) -> float:
    """A power that is neither complex nor too large to compute."""
    result: float = base ** (exponent if exponent in (-1, 2, 3) else 2)
    return result


OPERATORS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    small_power,
)
FUNCTIONS = (
    abs,
    operator.neg,
    math.sqrt,
    math.cos,
    math.floor,
    round,
    lambda v: v if v > 1 else 1 - v,
)
Expression = Any  # "n", a number, (function, expression ...)


def _value_of(expression: Expression, n: float) -> Any:
    if expression == "n":
        return n
    if not isinstance(expression, tuple):
        return expression
    function, *parts = expression
    return function(*[_value_of(part, n) for part in parts])


def _either(expression: Expression, n: float) -> Any:
    try:
        return _value_of(expression, n)
    except ArithmeticError:
        return -1.0
    except ValueError:
        return -2.0


_leaves = st.one_of(st.just("n"), st.sampled_from([2, 3, 0.5, -1.5, 0]))
_expressions = st.recursive(
    _leaves,
    lambda parts: st.one_of(
        st.tuples(st.sampled_from(OPERATORS), parts, parts),
        st.tuples(st.sampled_from(FUNCTIONS), parts),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(expression=_expressions, kind=st.sampled_from([int, float]))
@pytest.mark.filterwarnings("ignore:.*was traced .* times")
def test_random_expressions(expression: Expression, kind: type) -> None:
    state = State()
    x = torch.tensor([2.0, 3.0], dtype=torch.float64)

    def program(x: Tensor) -> Tensor:
        value = _either(expression, state.n)
        # torch takes no larger integers.
        if abs(value) > 1e15 or not math.isfinite(value):
            return x
        return x * value

    captured = jaxtorch.jit(program)
    for n in (1, 2, 3, 0, 7):
        state.n = kind(n)
        torch.testing.assert_close(captured(x.to("jax")).cpu(), program(x), rtol=1e-12, atol=0.0)


# -- where nothing runs, and where the code fails ---------------------------------------------------------------


def _counting() -> tuple[State, Any, Tensor]:
    state = State()
    captured = jaxtorch.jit(lambda x: counts(state, x))
    x = torch.ones(3, device="jax")
    captured(x)
    return state, captured, x


def test_lowering_leaves_numbers_as_they_are() -> None:
    state, captured, x = _counting()
    captured.lower(x)
    assert state.n == 1
    assert type(state.n) is int
    state.n = 10
    assert captured(x).tolist() == [11.0] * 3
    assert captured(x).tolist() == [12.0] * 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_code_that_fails(error: type[BaseException]) -> None:
    state = State()
    fails = False

    @jaxtorch.jit
    def f(x: Tensor) -> Tensor:
        state.n += 1
        if fails:
            raise error("the user's")
        return x * state.n

    x = torch.ones(3, device="jax")
    f(x)
    fails = True
    for _ in range(2):
        with pytest.raises(error, match="the user's") as caught:
            f(x)
        assert caught.value.__context__ is None
        assert state.n == 1
        assert type(state.n) is int
    fails = False
    assert f(x).tolist() == [2.0] * 3
    assert f(x).tolist() == [3.0] * 3


def test_another_thread_reads_a_number_during_a_trace() -> None:
    state, _, x = _counting()
    results: list[object] = []

    @jaxtorch.jit
    def f(x: Tensor) -> Tensor:
        y = x * state.n
        thread = threading.Thread(target=lambda: results.append((state.n + 1, state.n > 0)))
        thread.start()
        thread.join()
        return y

    f(x)
    state.n = 5
    f(x)
    assert results[-1] == (6, True)
    assert type(results[-1][0]) is int  # type: ignore[index]  # a tuple


def test_another_type() -> None:
    state, captured, x = _counting()
    for n in (1, 2, 0.5, 1.5, True, 3):
        state.n = n
        assert captured(x).tolist() == [n + 1.0] * 3
        assert type(state.n) is type(n + 1)


def test_a_tensor_in_place_of_a_number() -> None:
    state, captured, x = _counting()
    captured(x)
    state.n = torch.tensor(4.0, device="jax")  # type: ignore[assignment]  # the case
    assert captured(x).tolist() == [5.0] * 3
