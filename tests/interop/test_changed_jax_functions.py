"""What a JAX function reads beside its arguments changes between two calls of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import jaxtorch

# What is there, the function's body, and what changes.
CHANGES = {
    "a global": ("scale = 2.0", "return a * scale", "scale = 3.0"),
    "a helper": ("def h(a): return a * 2", "return h(a)", "def h(a): return a * 3"),
    "an attribute": ("class C: k = 2.0\nc = C()", "return a * c.k", "c.k = 3.0"),
    "a class attribute": ("class C: k = 2.0", "return a * C.k", "C.k = 3.0"),
    "an item": ("c = {'k': 2.0}", "return a * c['k']", "c['k'] = 3.0"),
    "a list": ("c = [1.0, 1.0]", "return a * sum(c)", "c.append(1.0)"),
    "an array": (
        "import numpy as np\nc = np.full(3, 2.0, np.float32)",
        "return a * c",
        "c[:] = 3.0",
    ),
    "a JAX array": ("c = jnp.full(3, 2.0)", "return a * c", "c = jnp.full(3, 3.0)"),
    "a default": ("def h(a, k=2.0): return a * k", "return h(a)", "h.__defaults__ = (3.0,)"),
}


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: jaxtorch.call_jax(function, x)


def captured(function: Callable[..., Any]) -> Callable[..., Any]:
    return jaxtorch.pure(eager(function))


@pytest.mark.parametrize("door", [eager, captured, jaxtorch.torch_view])
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen_and_no_change_is_kept(what: str, door: Callable[..., Any]) -> None:
    given, body, change = CHANGES[what]
    names: dict[str, Any] = {"__name__": "__main__", "jnp": jnp, "traces": []}
    exec(f"{given}\ndef f(a):\n    traces.append(1)\n    {body}", names)
    call = door(names["f"])
    x = torch.ones(3, device="jax", requires_grad=True)
    for expected in (2.0, 3.0):
        for _ in range(3):
            assert torch.equal(call(x), x * expected)
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        assert torch.equal(gradient, torch.full_like(x, expected))
        exec(change, names)


def test_what_is_traced_once_is_not_traced_again() -> None:
    traces = []

    def f(a: Any) -> Any:
        traces.append(1)
        return a * 2

    x = torch.ones(3, device="jax", requires_grad=True)
    for _ in range(3):
        jaxtorch.call_jax(f, x).sum().backward()
        with torch.no_grad():
            jaxtorch.call_jax(f, x)
    assert len(traces) == 1


def test_a_gradient_is_that_of_the_function_that_ran() -> None:
    scale = 2.0

    def f(a: Any) -> Any:
        return a * scale

    x = torch.ones(3, device="jax", requires_grad=True)
    y = jaxtorch.call_jax(f, x)
    scale = 3.0
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))


def test_a_torch_module_inside_a_jax_function_is_not_frozen() -> None:
    linear = torch.nn.Linear(3, 3, bias=False, device="jax")
    view = jaxtorch.jax_view(linear)

    def f(a: Any) -> Any:
        return view(a)

    x = torch.ones(3, device="jax")
    for factor in (1.0, 0.0):
        with torch.no_grad():
            linear.weight.mul_(factor)
            torch.testing.assert_close(jaxtorch.call_jax(f, x), linear(x))


@pytest.mark.parametrize("door", [jaxtorch.pure, jaxtorch.jit])
def test_an_array_of_jax_code_does_not_change_with_the_tensor_over_it(door: Any) -> None:
    array = jnp.ones(3)
    tensor, x = jaxtorch.to_torch(array, device="jax"), torch.zeros(3, device="jax")
    captured = door(lambda x: jaxtorch.call_jax(lambda v: v + 10 * array, x) + tensor)
    assert captured(x).tolist() == [11.0] * 3
    tensor.add_(1)
    assert captured(x).tolist() == [12.0] * 3
