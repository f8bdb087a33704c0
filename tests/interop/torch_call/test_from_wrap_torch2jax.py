"""What wrap-torch2jax's README, examples and tests do, with the import changed.

Each test has a subject of theirs. Where jaxtorch answers otherwise on purpose, the test asserts that and says why.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from jaxtorch import (
    Size,
    dtype_j2t,
    dtype_t2j,
    j2t,
    t2j,
    torch2jax,
    torch2jax_auto,
    torch2jax_with_vjp,
    torch2jax_without_vjp,
    tree_j2t,
    tree_t2j,
)

from .twins import FLOATS, TOLERANCE, close, like, normal

SHAPES = [(10, 2), (10,)]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """float64 exists, as in their tests."""
    with jax.enable_x64(True):
        yield


# -- the README


def test_readme_one_result() -> None:
    def torch_fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    a, b = torch.randn(10, 2), torch.randn(10, 2)
    ways = [
        torch2jax(torch_fn, a, b),
        torch2jax(torch_fn, a, b, output_shapes=Size(a.shape)),
        torch2jax(torch_fn, like(a), like(b), output_shapes=like(a)),
    ]
    x, y = normal(0, (10, 2)), normal(1, (10, 2))
    for jax_fn in ways:
        close(jax_fn(x, y), x + y)
        close(jax.jit(jax_fn)(x, y), x + y)


def test_readme_several_results_and_a_layer_made_inside() -> None:
    def torch_fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        layer = nn.Linear(2, 20).to(a)
        return a + b, torch.norm(a), layer(a * b)

    jax_fn = torch2jax(torch_fn, torch.randn(10, 2), torch.randn(10, 2))
    a, b = normal(0, (10, 2)), normal(1, (10, 2))
    for function in (jax_fn, jax.jit(jax_fn)):
        x, y, z = function(a, b)
        close((x, y), (a + b, jnp.linalg.norm(a)))
        assert z.shape == (10, 20)
        assert z.dtype == a.dtype


def test_readme_gradients() -> None:
    jax_fn = torch2jax_with_vjp(nn.MSELoss(), torch.randn(6), torch.randn(6), depth=2)
    gradient = jax.grad(jax_fn, argnums=(0, 1))
    x, y = normal(0, (6,)), normal(1, (6,))
    expected = jax.grad(lambda x, y: jnp.mean((x - y) ** 2), argnums=(0, 1))(x, y)
    close(gradient(x, y), expected)
    close(jax.jit(gradient)(x, y), expected)


def test_readme_shapes_that_change_by_wrapping_inside() -> None:
    @jax.jit
    def compute(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        d = torch2jax_with_vjp(torch.add, like(a), like(b), output_shapes=like(a))(a, b)
        return d - c

    for n in (3, 5):
        a, b = normal(0, (n,)), normal(1, (n,))
        close(compute(a, b, a), a + b - a)


def test_shapes_change_without_wrapping_again() -> None:
    """Theirs refuses another shape than the example's; JAX functions take any, so ours makes another call."""
    jax_fn = torch2jax_with_vjp(torch.add, torch.zeros(3), torch.zeros(3))
    for n in (3, 5):
        a, b = normal(0, (n,)), normal(1, (n,))
        close(jax.jit(jax_fn)(a, b), a + b)


def test_readme_depth() -> None:
    """`depth=0` leaves out the derivatives in theirs; ours has them at no cost."""
    x = normal(0, (6,))
    for wrap in (torch2jax, torch2jax_with_vjp, torch2jax_without_vjp):
        jax_fn = wrap(torch.sin, torch.randn(6), depth=0)
        close(jax_fn(x), jnp.sin(x))
        close(jax.grad(lambda x, f=jax_fn: f(x).sum())(x), jnp.cos(x))
    close(torch2jax_auto(torch.sin)(x), jnp.sin(x))
    close(torch2jax_auto(torch.sin, output_shapes=x)(x), jnp.sin(x))


def test_hessian() -> None:
    """Theirs has no forward derivatives, and its README says to take two jacobians instead."""
    jax_fn = torch2jax_with_vjp(lambda x: (x**3).sum(), torch.zeros(4))
    x = normal(0, (4,))
    close(jax.hessian(jax_fn)(x), jnp.diag(6 * x))
    close(jax.jit(jax.jacobian(jax.jacobian(jax_fn)))(x), jnp.diag(6 * x))


# -- the interface


def torch_pair(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    difference = x - y.reshape(x.shape)
    return [(difference + 1) / torch.norm(y), difference.reshape(-1)[:5]]


def jax_pair(x: jax.Array, y: jax.Array) -> list[jax.Array]:
    difference = x - y.reshape(x.shape)
    return [(difference + 1) / jnp.linalg.norm(y), difference.reshape(-1)[:5]]


def _by_name(function: Any, x: Any, y: Any) -> Any:
    return function(x, y=y)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_interface(
    shape: tuple[int, ...], dtype: Any, declared: bool, named: bool, several: bool
) -> None:
    def of(pair: Any) -> Any:
        return pair if several else lambda x, y: pair(x, y)[0]

    x, y = normal(0, shape, dtype), normal(1, shape, dtype).reshape(-1)
    xt, yt = tree_j2t((x, y))
    shapes = [Size(shape), Size((5,))] if several else Size(shape)
    options: dict[str, Any] = {"output_shapes": shapes} if declared else {}
    if named:
        jax_fn = torch2jax(of(torch_pair), xt, example_kw={"y": yt}, **options)
        call = functools.partial(_by_name, jax_fn)
    else:
        call = jax_fn = torch2jax(of(torch_pair), xt, yt, **options)
    expected = of(jax_pair)(x, y)
    close(call(x, y), expected, TOLERANCE[dtype])

    @jax.jit
    def among_others(x: jax.Array, y: jax.Array) -> Any:
        return call(x, y), x + y.reshape(x.shape), jnp.linalg.norm(x) - jnp.linalg.norm(y)

    close(among_others(x, y)[0], expected, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_wrapped_for_one_dtype_and_called_with_another(dtype: Any) -> None:
    examples = normal(0, (10, 2), jnp.float64), normal(1, (20,), jnp.float64)
    jax_fn = torch2jax(torch_pair, *examples, output_shapes=[Size((10, 2)), Size((5,))])
    x, y = normal(2, (10, 2), dtype), normal(3, (20,), dtype)
    for function in (jax_fn, jax.jit(jax_fn)):
        close(function(x, y), jax_pair(x, y), TOLERANCE[dtype])


@pytest.mark.parametrize("several", [False, True])
def test_specification_of_inputs_and_outputs(several: bool) -> None:
    """The function runs once a call. Theirs runs it once more where results are not declared, on the examples; ours
    finds their shapes on tensors without values, which arrays will do for as examples too."""
    runs = 0

    def fn(a: torch.Tensor, b: torch.Tensor) -> Any:
        nonlocal runs
        runs += type(a) is torch.Tensor
        both = a + b + torch.ones_like(a), a - b
        return both if several else both[0]

    at, bt = torch.randn(10), torch.randn(10)
    a, b = tree_t2j((at, bt))
    expected = (a + b + 1, a - b) if several else a + b + 1
    shapes = (Size((10,)), Size((10,))) if several else Size((10,))
    structs = (like(a), like(a)) if several else like(a)
    for examples, output_shapes in [
        ((at, bt), None),
        ((a, b), None),
        ((at, bt), shapes),
        ((at, bt), structs),
        ((a, b), structs),
        ((like(a), like(b)), structs),
    ]:
        jax_fn = torch2jax_with_vjp(fn, *examples, output_shapes=output_shapes)
        assert runs == 0
        close(jax_fn(a, b), expected)
        assert runs == 1
        runs = 0


def test_names_of_dtypes() -> None:
    for torch_dtype, jax_dtype in [
        (torch.float32, jnp.float32),
        (torch.float64, jnp.float64),
        (torch.bfloat16, jnp.bfloat16),
        (torch.float16, jnp.float16),
        (torch.uint8, jnp.uint8),
        (torch.int64, jnp.int64),
        (torch.bool, jnp.bool_),
    ]:
        assert dtype_t2j(torch_dtype) == jax_dtype
        assert dtype_j2t(jax_dtype) == torch_dtype
        assert dtype_t2j(dtype_t2j(torch_dtype)) == jax_dtype
        assert dtype_j2t(torch_dtype) == torch_dtype


@pytest.mark.parametrize("lock", [True, threading.Lock()])
def test_a_lock_keeps_calls_apart(lock: Any) -> None:
    """`functional_call` puts weights into the one module, for as long as the call takes."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    inside = 0

    def forward(weights: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal inside
        inside += 1
        assert inside == 1
        result = functional_call(model, weights, x)
        inside -= 1
        return result

    jax_fn = jax.jit(torch2jax(forward, lock=lock))
    weights = tree_t2j(dict(model.named_parameters()))
    x = normal(0, (16, 8))

    def call(scale: int) -> tuple[jax.Array, jax.Array]:
        own = {name: w * scale for name, w in weights.items()}
        hidden = jnp.tanh(x @ own["0.weight"].T + own["0.bias"])
        expected = hidden @ own["2.weight"].T + own["2.bias"]
        return jnp.stack([jax_fn(own, x) for _ in range(50)]), jnp.stack([expected] * 50)

    with ThreadPoolExecutor(4) as pool:
        for found, expected in pool.map(call, range(4)):
            close(found, expected, 1e-4)


# -- values


@pytest.mark.parametrize("via", ["dlpack", "host"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_values_across(dtype: Any, via: str) -> None:
    array = normal(0, (2, 3, 5, 1), dtype)
    tensor = j2t(array, via=via)
    assert tensor.dtype == dtype_j2t(dtype)
    np.testing.assert_array_equal(tensor.numpy(), array)
    source = torch.randn(2, 3, 5, 1, dtype=dtype_j2t(dtype))
    close(t2j(source, via=via), jnp.asarray(source.numpy()), 0)


def test_trees_across() -> None:
    array, tensor = normal(0, (10, 2)), torch.randn(10, 2)
    tree = {"a": 1, "b": array, "c": "hello", "d": (1, array, tensor)}
    there = tree_j2t(tree)
    assert (there["a"], there["c"], there["d"][0]) == (1, "hello", 1)
    assert all(isinstance(t, torch.Tensor) for t in (there["b"], *there["d"][1:]))
    back = tree_t2j(there)
    assert (back["a"], back["c"], back["d"][0]) == (1, "hello", 1)
    close((back["b"], back["d"][1]), (array, array), 0)
    close(back["d"][2], jnp.asarray(tensor.numpy()), 0)


def test_conversions_while_jax_traces() -> None:
    """Theirs refuses this."""
    x = normal(0, (10, 2))
    close(jax.jit(lambda x: t2j(2 * j2t(x)))(x), 2 * x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_writes_do_not_reach_jax(dtype: Any) -> None:
    """Theirs lets the function write into JAX's array, and its tests say so. JAX takes arrays for immutable, shares
    their memory and computes ahead, so that the write might show anywhere; ours writes to a copy."""

    def torch_fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        x[:5].add_(17.0)
        return y + x

    x = jnp.zeros(50, dtype)
    jax_fn = torch2jax(torch_fn, x, output_shapes=Size(x.shape))
    written = jnp.zeros(50, dtype).at[:5].set(17)
    for function in (jax_fn, jax.jit(jax_fn)):
        close(function(x), written, 0)
        close(x, jnp.zeros(50, dtype), 0)
