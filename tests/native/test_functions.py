"""The functions that the module has as well as Python: both give the same, and leave the same behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

from jaxtorch.native import loading
from jaxtorch.programs.atomic import receiver
from jaxtorch.storage.buffer import Buffer, buffer_of
from jaxtorch.storage.pending import suspend

from . import COMPILED

pytestmark = COMPILED
Tensor = torch.Tensor
Parameter = torch.nn.Parameter


class Sub(Tensor):
    pass


def both(name: str) -> list[Callable[..., Any]]:
    return [loading.replaced[name], getattr(loading.calls, name)]


def test_all_functions_are_replaced() -> None:
    for name, function in loading.replaced.items():
        assert function.__globals__[name] is getattr(loading.calls, name)  # type: ignore[attr-defined]  # functions, typed as callables


@pytest.mark.parametrize("function", both("held") if loading.calls else [])
def test_held(function: Any) -> None:
    kept = receiver()
    pair = [receiver()]
    assert function([]) == []
    assert function([receiver(), kept, None, pair[0], receiver()]) == [1, 3]


@pytest.mark.parametrize("function", both("shared") if loading.calls else [])
def test_shared(function: Any) -> None:
    kept = jnp.ones(2)
    arrays = [jnp.ones(3), kept, jnp.ones(4), kept]
    assert function(arrays, frozenset()) == []
    assert function(arrays, [0]) == []
    assert function(arrays, frozenset([0, 1, 2])) == [1]
    assert function(arrays, (3, 2, 1)) == [3, 1]


def waiting(index: int) -> Buffer:
    buffer = buffer_of(torch.ones(2, device="jax"))
    suspend([buffer], [index])
    return buffer


@pytest.mark.parametrize("function", both("run_and_settle") if loading.calls else [])
def test_run_and_settle(function: Any) -> None:
    settled = buffer_of(torch.ones(2, device="jax"))
    before = settled.array
    # Buffer 3 was overwritten: it waits for result 5 now. Buffer 4 was settled by another thread.
    *waiting_ones, third = waiting(0), waiting(2), waiting(5)
    buffers = [waiting_ones[0], None, waiting_ones[1], third, settled, third]
    taken: list[tuple[object, ...]] = []
    outputs = [jnp.full(2, float(i)) for i in range(5)]

    def execute(*operands: object) -> object:
        taken.append(operands)
        return outputs

    assert function(execute, [1, 2], buffers, [4, 3, 1, 5, 0]) is None
    assert taken == [(1, 2)]
    first, second = waiting_ones
    assert first.array is outputs[4]
    assert type(first) is type(third) is Buffer
    assert second.pending, "its result was not asked for"
    assert settled.array is before
    assert third.array is outputs[3]
    suspend([second], [0])  # so that nothing waits for a window that does not exist
    function(lambda: (before,), [], [second], [0])
    assert not second.pending


@pytest.mark.parametrize("function", both("run_and_settle") if loading.calls else [])
def test_a_program_that_fails_settles_nothing(function: Any) -> None:
    buffer = waiting(0)

    def execute() -> object:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        function(execute, [], [buffer], [0])
    assert buffer.pending
    function(lambda: [jnp.ones(2)], [], [buffer], [0])
    assert not buffer.pending


@pytest.mark.parametrize("function", both("run_and_settle") if loading.calls else [])
def test_large_buffers_keep_their_class(function: Any) -> None:
    buffer = buffer_of(torch.ones(1000, 1000, device="jax"))
    counted = type(buffer)
    assert counted is not Buffer
    suspend([buffer], [0])
    function(lambda: [jnp.ones((1000, 1000))], [], [buffer], [0])
    assert type(buffer) is counted


def parameter(**options: Any) -> Parameter:
    return Parameter(torch.ones(2, 3, device="jax", **options))


def with_grad(grad: Tensor | None, **options: Any) -> Parameter:
    made = parameter(**options)
    made.grad = grad
    return made


def computed(dtype: torch.dtype = torch.float32) -> Parameter:
    """Its gradient was made in C++: Python has not seen it."""
    made = parameter(dtype=dtype)
    (made * 2).sum().backward()
    return made


def of_gradient_that_records() -> Parameter:
    made = parameter()
    (made * made).sum().backward(create_graph=True)
    return made


def of_half_gradient() -> Parameter:
    made = parameter()
    made.grad_dtype = None  # type: ignore[assignment]  # any dtype
    made.grad = torch.ones(2, 3, device="jax", dtype=torch.float16)
    return made


PLAIN: dict[str, Callable[[], Tensor]] = {
    "without a gradient": parameter,
    "with a gradient": lambda: with_grad(torch.ones(2, 3, device="jax")),
    "with one made in C++": computed,
    "bfloat16": lambda: computed(torch.bfloat16),
    "a tensor": lambda: torch.ones(2, device="jax"),
    "a buffer of a module": lambda: torch.nn.Buffer(torch.ones(2, device="jax")),
}
OTHERS: dict[str, Callable[[], Tensor]] = {
    "on the CPU": lambda: Parameter(torch.ones(2)),
    "on meta": lambda: Parameter(torch.ones(2, device="meta")),
    "complex": lambda: parameter(dtype=torch.complex64),
    "integers": lambda: torch.ones(2, dtype=torch.int64, device="jax"),
    "a subclass": lambda: torch.ones(2, device="jax").as_subclass(Sub),
    "a gradient of a subclass": lambda: with_grad(torch.ones(2, 3, device="jax").as_subclass(Sub)),
    "a gradient that records": of_gradient_that_records,
    "a gradient of another dtype": of_half_gradient,
}


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_are_plain(name: str) -> None:
    made = (PLAIN | OTHERS)[name]()
    for function in both("are_plain"):
        assert function([made]) is (name in PLAIN)
        assert function([parameter(), made, parameter()]) is (name in PLAIN)
        assert function([]) is True
