"""Python numbers that vary from call to call, in attributes, containers, globals and optimizers.

Each program runs eagerly on the CPU and captured; both must agree at each call, and captured code must be traced a few
times only.
"""

from __future__ import annotations

import gc
import math
import operator
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import jaxtorch
from jaxtorch.capture.dependencies.host_number import holds_host_number

Tensor = torch.Tensor
CALLS = 8


class State:
    """Numbers of a program."""

    def __init__(self) -> None:
        self.n = 0
        self.scale = 1.0
        self.total = 0.0
        self.last = 0.0
        self.flag = True
        self.settings = {"lr": 0.1, "steps": 0}
        self.history = [1.0, 2.0]


def counts(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * s.n


def decays(s: State, x: Tensor) -> Tensor:
    s.scale *= 0.9
    return x * s.scale + s.scale


def warms_up(s: State, x: Tensor) -> Tensor:
    s.n += 1
    decay = min(0.99, (1 + s.n) / (10 + s.n))
    return x.lerp(x * 2, 1 - decay)


def branches(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * 2 if s.n < 4 else x / s.n


def anneals(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * (0.5 * (1 + math.cos(math.pi * s.n / 10))) + math.sqrt(s.n) * math.exp(-s.n)


def corrects(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return (x / (1 - 0.9**s.n)).add(x, alpha=-s.n / 3).addcmul(x, x, value=1 / s.n)


def adds_up(s: State, x: Tensor) -> Tensor:
    s.n += 1
    s.total += s.n * 0.5
    s.last = s.total - s.n
    return x + s.total - s.last


def in_a_dictionary(s: State, x: Tensor) -> Tensor:
    s.settings["steps"] += 1
    return x * s.settings["lr"] / s.settings["steps"]


def in_a_list(s: State, x: Tensor) -> Tensor:
    s.history[-1] = s.history[-1] * 1.5
    return x * sum(s.history)


def in_a_loop(s: State, x: Tensor) -> Tensor:
    for _ in range(3):
        s.n += 1
        x = x + s.n
    return x


def in_a_function(s: State, x: Tensor) -> Tensor:
    def schedule(step: int, most: float = 5.0) -> float:
        return float(max(0.0, 1.0 - step / most))

    s.n += 1
    return x * (1 - s.n / 20)


def compares_with_tensors(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return torch.where(x > s.n, x, x - s.n) + (s.n <= x)


def starts_over(s: State, x: Tensor) -> Tensor:
    s.n += 1
    if s.n == 5:
        s.n = 0
        s.scale = 3.0
    return x * s.n + s.scale


def both_sides(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return (s.n + x) * (s.n - x) / (s.n / x) - (x - s.n)


def in_place(s: State, x: Tensor) -> Tensor:
    s.n += 1
    y = x.clone()
    y *= s.n
    y.mul_(s.n).sub_(x, alpha=s.n).div_(s.n)
    return y


def of_numpy(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * (0.5 * (1 + np.cos(np.pi * s.n / 10))) + np.float64(2.0) * s.n


def is_nothing(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x if s.n == None or s.n == "auto" else x * s.n  # noqa: E711  # the case


def as_integers(s: State, x: Tensor) -> Tensor:
    s.n += 3
    return x * (s.n // 2) + s.n % 4 - abs(-s.n) + round(s.n / 7, 1) + math.floor(s.n / 2)


# A program, and how often it is traced at most: at first, with numbers that vary, and for each change of a branch.
STEADY: dict[str, tuple[Callable[[State, Tensor], Tensor], int]] = {
    f.__name__: (f, traces)
    for f, traces in (
        (counts, 2),
        (decays, 2),
        (warms_up, 2),
        (branches, 3),
        (anneals, 2),
        (corrects, 2),
        (adds_up, 3),
        (in_a_dictionary, 2),
        (in_a_list, 2),
        (in_a_loop, 2),
        (in_a_function, 2),
        (compares_with_tensors, 2),
        (starts_over, 5),
        (both_sides, 2),
        (in_place, 2),
        (of_numpy, 2),
        (is_nothing, 2),
        (as_integers, 2),
    )
}


def by_index(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x[s.n % 3] * x


def by_range(s: State, x: Tensor) -> Tensor:
    s.n += 1
    for i in range(s.n):
        x = x + i
    return x


def of_halves(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return (x.to(torch.bfloat16) * s.n).to(x.dtype)


def as_a_tensor(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * torch.tensor(s.n, device=x.device) + torch.full((3,), s.n / 2, device=x.device)


def as_a_key(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * {1: 5, 2: 7}.get(s.n, 9) * len(f"{s.n:03d}")


def by_type(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * (s.n if type(s.n) is int else 100)


def by_isinstance(s: State, x: Tensor) -> Tensor:
    s.scale *= 2
    return x * (s.scale if isinstance(s.scale, float) and not isinstance(s.scale, Tensor) else 100)


def as_an_exponent(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x**s.n + s.n**x


def clamps(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x.clamp(-s.n, s.n) + x.clamp(min=s.n)


def of_integers(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x + torch.arange(3, device=x.device) * s.n


def raises_inside(s: State, x: Tensor) -> Tensor:
    s.n += 1
    try:
        return x * (1 / (s.n - 3))
    except ZeroDivisionError:
        return x


def to_a_new_object(s: State, x: Tensor) -> Tensor:
    s.n += 1
    s.settings = {"lr": 0.1, "steps": s.n}
    return x * s.settings["steps"]


def to_a_key(s: State, x: Tensor) -> Tensor:
    s.n += 1
    s.settings[s.n] = s.n * 2  # type: ignore[index]  # the case
    return x * s.settings[s.n]  # type: ignore[index]  # the case


def to_another_type(s: State, x: Tensor) -> Tensor:
    s.n = s.n + 0.5 if s.n < 3 else 7  # type: ignore[assignment]  # the case
    return x * s.n


VALUES: dict[str, Callable[[State, Tensor], Tensor]] = {
    f.__name__: f
    for f in (
        by_index,
        by_range,
        of_halves,
        as_a_tensor,
        as_a_key,
        by_type,
        by_isinstance,
        as_an_exponent,
        clamps,
        of_integers,
        raises_inside,
        to_a_new_object,
        to_a_key,
        to_another_type,
    )
}


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


# -- where numbers are ------------------------------------------------------------------------------------------

_global = 0


def _of_a_global() -> Callable[[Tensor], Tensor]:
    global _global
    _global = 0

    def program(x: Tensor) -> Tensor:
        global _global
        _global += 1
        return x * _global

    return program


def _of_a_closure() -> Callable[[Tensor], Tensor]:
    n = 0

    def program(x: Tensor) -> Tensor:
        nonlocal n
        n += 1
        return x * n

    return program


def _of_slots() -> Callable[[Tensor], Tensor]:
    class Slotted:
        __slots__ = ("n",)

    state = Slotted()
    state.n = 0

    def program(x: Tensor) -> Tensor:
        state.n += 1
        return x * state.n

    return program


def _of_a_class() -> Callable[[Tensor], Tensor]:
    class Counter:
        n = 0

    def program(x: Tensor) -> Tensor:
        Counter.n += 1
        return x * Counter.n

    return program


def _of_a_module() -> Callable[[Tensor], Tensor]:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return x * self.n

    return Counting()


def _of_a_dataclass() -> Callable[[Tensor], Tensor]:
    @dataclass
    class Counter:
        n: int = 0

    counter = Counter()

    def program(x: Tensor) -> Tensor:
        counter.n += 1
        return x * counter.n

    return program


def _of_a_property() -> Callable[[Tensor], Tensor]:
    class Counter:
        def __init__(self) -> None:
            self._n = 0

        @property
        def n(self) -> int:
            return self._n

        @n.setter
        def n(self, value: int) -> None:
            self._n = value

    counter = Counter()

    def program(x: Tensor) -> Tensor:
        counter.n += 1
        return x * counter.n

    return program


def _of_a_default() -> Callable[[Tensor], Tensor]:
    table = defaultdict(int)

    def program(x: Tensor) -> Tensor:
        table["n"] += 1
        return x * table["n"]

    return program


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize(
    "make",
    [
        _of_a_global,
        _of_a_closure,
        _of_slots,
        _of_a_class,
        _of_a_module,
        _of_a_dataclass,
        _of_a_property,
        _of_a_default,
    ],
)
def test_counters(make: Callable[[], Any], capture: Any) -> None:
    x = torch.ones(2, device="jax")
    captured = capture(make())
    assert [captured(x)[0].item() for _ in range(CALLS)] == list(range(1, CALLS + 1))
    assert captured.cache_info().misses <= 3


class OfTheClass:
    scale = 1.0


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_a_number_of_the_class_stays_there(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, x = OfTheClass(), torch.ones(2, device="jax")
    captured = capture(lambda x: x * state.scale)
    for scale in (1.0, 2.0, 3.0, 4.0):
        monkeypatch.setattr(OfTheClass, "scale", scale)
        assert captured(x).tolist() == [scale] * 2
    assert not vars(state)


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_an_owner_that_checks_what_is_assigned(capture: Any) -> None:
    class Checked:
        def __setattr__(self, name: str, value: object) -> None:
            assert type(value) is float
            super().__setattr__(name, value)

    state, x = Checked(), torch.ones(2, device="jax")
    state.scale = 1.0  # type: ignore[attr-defined]  # set here
    captured = capture(lambda x: x * state.scale)  # type: ignore[attr-defined]  # as above
    for scale in (1.0, 2.0, 3.0, 4.0):
        state.scale = scale  # type: ignore[attr-defined]  # as above
        assert captured(x).tolist() == [scale] * 2


def test_arguments_are_not_kept() -> None:
    step = jaxtorch.jit(lambda x, n: x * n)
    for n in (1, 2, 3):
        x = torch.ones(2, device="jax")
        reference = weakref.ref(x.untyped_storage().buffer)  # type: ignore[attr-defined]  # of the device
        step(x, n)
        del x
        gc.collect()
        assert reference() is None


# -- arguments ------------------------------------------------------------------------------------------------


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


# -- arithmetic -----------------------------------------------------------------------------------------------

OPERATORS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
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


@settings(max_examples=60, deadline=None)
@given(expression=_expressions, kind=st.sampled_from([int, float]))
@pytest.mark.filterwarnings("ignore:.*was traced .* times")
def test_random_expressions(expression: Expression, kind: type) -> None:
    state = State()
    x = torch.tensor([2.0, 3.0], dtype=torch.float64)

    def program(x: Tensor) -> Tensor:
        value = _either(expression, state.n)
        if isinstance(value, complex) or not math.isfinite(value) or abs(value) > 1e100:
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
        with pytest.raises(error, match="the user's"):
            f(x)
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


# -- optimizers -------------------------------------------------------------------------------------------------


class Adam(torch.optim.Optimizer):
    """As many people write it. `where`: where it counts its steps."""

    def __init__(self, parameters: Any, where: str) -> None:
        super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.99)})
        self.where = where
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        self.count += 1
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                t = {"state": state["step"], "group": group["step"], "self": self.count}[self.where]
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                denominator = (state["v"].sqrt() / math.sqrt(1 - beta2**t)).add_(1e-8)
                p.addcdiv_(state["m"], denominator, value=-group["lr"] / (1 - beta1**t))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("where", ["state", "group", "self"])
def test_an_optimizer_that_counts_in_python(where: str, scheduled: bool) -> None:
    losses: list[list[float]] = []
    for device in ("cpu", "jax"):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        x = torch.linspace(-1, 1, 12).reshape(4, 3).to(device)
        optimizer = Adam(model.parameters(), where)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def body(
            model: nn.Module = model, x: Tensor = x, optimizer: torch.optim.Optimizer = optimizer
        ) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step: Any = body if device == "cpu" else jaxtorch.jit(body)
        losses.append([])
        for _ in range(CALLS):
            losses[-1].append(float(step()))
            if scheduled:
                scheduler.step()
        assert optimizer.count == optimizer.param_groups[0]["step"] == CALLS
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]))
    assert step.cache_info().misses <= 4


class ReadsItsRate(torch.optim.SGD):
    """Needs its learning rate as a number, so that its step is traced twice, and counts its steps."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            rate = float(group["lr"])
            for p in group["params"]:
                p.sub_(p.grad * (rate / group["k"]))


def test_a_step_that_is_traced_again_with_its_rate_as_a_number() -> None:
    weights = []
    for device in ("cpu", "jax"):
        w = torch.ones(3, device=device, requires_grad=True)
        optimizer = ReadsItsRate([w], lr=0.1)

        def body(w: Tensor = w, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            w.square().sum().backward()
            optimizer.step()

        step = body if device == "cpu" else jaxtorch.jit(body)
        for _ in range(CALLS):
            step()
        assert optimizer.param_groups[0]["k"] == CALLS
        weights.append(w.detach().cpu())
    torch.testing.assert_close(*weights)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD, nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
}


class ChangesWeightDecay:
    """A schedule of another setting, as people write it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups = optimizer.param_groups

    def step(self) -> None:
        for group in self.groups:
            group["weight_decay"] = group["weight_decay"] * 0.8 + 0.01


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "weight decay": ChangesWeightDecay,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_schedules_of_other_settings_than_the_learning_rate(name: str, schedule: str) -> None:
    """`OneCycleLR` and `CyclicLR` change the momentum, or `betas`, at each step."""
    losses: list[list[float]] = []
    for device in ("cpu", "jax"):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        x = torch.linspace(-1, 1, 12).reshape(4, 3).to(device)
        optimizer = OPTIMIZERS[name](model.parameters())
        scheduler = SCHEDULES[schedule](optimizer)

        def body(
            model: nn.Module = model, x: Tensor = x, optimizer: torch.optim.Optimizer = optimizer
        ) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step: Any = body if device == "cpu" else jaxtorch.jit(body)
        settings = []
        losses.append([])
        for _ in range(CALLS):
            losses[-1].append(float(step()))
            scheduler.step()
            settings.append(
                {k: v for k, v in optimizer.param_groups[0].items() if isinstance(v, float | tuple)}
            )
        if device == "cpu":
            expected = settings
    assert settings == expected
    torch.testing.assert_close(
        torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-5, atol=1e-6
    )
    assert step.cache_info().misses <= 3


def test_lowering_a_step_with_settings_that_vary() -> None:
    w = torch.ones(3, device="jax", requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

    @jaxtorch.jit
    def step() -> None:
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
        scheduler.step()
    w.requires_grad_()
    before = dict(optimizer.param_groups[0])
    step.clear_cache()
    step.lower()
    assert optimizer.param_groups[0] == before
    assert list(map(type, optimizer.param_groups[0]["betas"])) == [float, float]
