"""The inclusive time of a line covers everything that it called, eagerly and in captured code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .code import ran
from .test_join import PRODUCT
from .test_join import names as names

CALLS = """
def product(x):
    return x @ b

def twice(x):
    return product(product(x))

def captured(x):
    y = twice(x)
    return y.sum()

call = {call}

def work():
    if w.grad is not None:
        w.grad = None
    x = w @ c

    loss = call(x)
    loss.backward(loss.detach().clone())
"""


@pytest.mark.parametrize("way", ["eager", "pure"])
def test_inclusive_is_the_time_of_all_that_was_called_through_a_line(
    tmp_path: Path, names: dict[str, Any], way: str
) -> None:
    names["w"] = names["a"].clone().requires_grad_()
    call = "captured" if way == "eager" else "jaxtorch.pure(captured)"
    profiled = ran(tmp_path, CALLS.format(call=call), names, warmup=2)
    flops = {line: time.flops for line, time in profiled.inclusive.items()}
    # Products, and their gradients by one factor. The sums of elements are small beside them.
    near = lambda n: pytest.approx(n * PRODUCT, rel=0.05)  # noqa: E731
    assert flops.keys() == {2, 5, 8, 9, 16, 18, 19}
    assert flops[2] == flops[5] == flops[8] == near(4)
    assert flops[16] == near(2)
    assert flops[18] == near(4)
    assert flops[18] > flops[8]  # by line 9
    assert flops[19] == near(3)  # waits for the backward pass
    assert {line for line, time in profiled.by_line.items() if time.flops} == {2, 9, 16}
    calling = {row.location.line for row in profiled.profile.calling if row.location is not None}
    assert calling == {5, 8, 18, 19}
    for line, time in profiled.by_line.items():
        assert time.total <= profiled.inclusive[line].total * (1 + 1e-9)
    assert max(t.total for t in profiled.inclusive.values()) <= profiled.profile.device * (1 + 1e-9)


def test_a_line_that_calls_itself_counts_once(tmp_path: Path, names: dict[str, Any]) -> None:
    profiled = ran(
        tmp_path,
        """
        def down(n):
            if n:
                return down(n - 1)
            return a @ b

        def work():
            return down(5)
        """,
        names,
        warmup=1,
    )
    assert {line: time.flops for line, time in profiled.inclusive.items()} == dict.fromkeys(
        (3, 4, 7), PRODUCT
    )


def test_the_line_that_calls_captured_code_is_the_one_that_called_it_this_time(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    """The frames of the program are those of its trace, which another line called."""
    profiled = ran(
        tmp_path,
        """
        @jaxtorch.jit
        def step(x):
            return x @ b

        def before():
            return step(a)

        def work():
            step(a)

            for _ in range(3):
                step(a)

        before()
        """,
        names,
        warmup=1,
    )
    flops = {line: time.flops for line, time in profiled.inclusive.items()}
    assert flops == {3: 4 * PRODUCT, 9: PRODUCT, 12: 3 * PRODUCT}
    assert profiled.by_line[3].flops == 4 * PRODUCT
