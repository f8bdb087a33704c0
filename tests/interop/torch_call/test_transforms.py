"""Each transform of JAX over a torch function, against the same function in JAX, and JAX's own check of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.test_util import check_grads

from jaxtorch import torch2jax

Function = Callable[..., Any]


def in_torch(x: Any, y: Any) -> Any:
    return torch.sin(x) * y / (1 + x * x)


def in_jax(x: Any, y: Any) -> Any:
    return jnp.sin(x) * y / (1 + x * x)


def total(f: Function) -> Function:
    return lambda x, y: f(x, y).sum()


def through_scan(f: Function) -> Function:
    def looped(x: Any, y: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (f(carry, y), carry.sum()), x, None, length=3)

    return looped


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "itself": lambda f: f,
    "grad": lambda f: jax.grad(total(f), argnums=(0, 1)),
    "value_and_grad": lambda f: jax.value_and_grad(total(f)),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    "linearize": lambda f: lambda x, y: jax.linearize(f, x, y)[1](y, x),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": lambda f: jax.hessian(total(f)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(total(f))),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(total(f))),
    "third derivative": lambda f: jax.jacfwd(jax.hessian(total(f))),
    "fourth derivative": lambda f: jax.grad(
        total(lambda x, y: jax.jacrev(jax.hessian(total(f)))(x, y))
    ),
    "vmap": jax.vmap,
    "vmap over the second axis": lambda f: jax.vmap(f, in_axes=1, out_axes=1),
    "vmap of one argument": lambda f: jax.vmap(f, in_axes=(0, None)),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(total(f)), in_axes=(0, None)),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(total(f))),
    "grad of vmap": lambda f: jax.grad(total(jax.vmap(f, in_axes=(None, 0))), argnums=(0, 1)),
    "vmap of grad of vmap": lambda f: jax.vmap(jax.grad(total(jax.vmap(f)), argnums=(0, 1))),
    "hessian of vmap": lambda f: jax.hessian(total(jax.vmap(f, in_axes=(0, None)))),
    "grad of jvp": lambda f: jax.grad(
        lambda x, y: jax.jvp(f, (x, y), (y, x))[1].sum(), argnums=(0, 1)
    ),
    "grad of checkpoint": lambda f: jax.grad(total(jax.checkpoint(f))),
    "scan": through_scan,
    "grad of scan": lambda f: jax.grad(lambda x, y: through_scan(f)(x, y)[1].sum(), argnums=(0, 1)),
    "vmap of grad of scan": lambda f: jax.vmap(
        jax.grad(lambda x, y: through_scan(f)(x, y)[1].sum())
    ),
    "while": lambda f: (
        lambda x, y: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + abs(f(c, y)), x)
    ),
    "cond": lambda f: jax.grad(
        lambda x, y: jax.lax.cond(x.sum() > 0, lambda: f(x, y).sum(), lambda: f(y, x).sum())
    ),
}


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def arguments(request: pytest.FixtureRequest) -> Iterator[tuple[jax.Array, jax.Array]]:
    with jax.enable_x64(request.param is np.float64):
        x, y = np.random.default_rng(0).standard_normal((2, 2, 2)).astype(request.param)
        yield jnp.asarray(x), jnp.asarray(y)


def assert_same(found: Any, wanted: Any, dtype: np.dtype) -> None:
    tolerance = 2e-4 if dtype == np.float32 else 1e-10
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, wanted
    )
    assert jax.tree.map(lambda a: (a.shape, a.dtype), found) == jax.tree.map(
        lambda a: (a.shape, a.dtype), wanted
    )


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_it_gives_for_the_function_in_jax(name: str, arguments: Any) -> None:
    transform = TRANSFORMS[name]
    wanted = transform(in_jax)(*arguments)
    assert_same(transform(torch2jax(in_torch))(*arguments), wanted, arguments[0].dtype)
    assert_same(jax.jit(transform(torch2jax(in_torch)))(*arguments), wanted, arguments[0].dtype)


@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_jax_finds_the_derivatives_right(mode: str, compiled: bool) -> None:
    """`check_grads` compares with differences of values, in float64, where those tell."""
    with jax.enable_x64(True):
        x, y = np.random.default_rng(1).standard_normal((2, 3, 2))
        f = torch2jax(in_torch)
        check_grads(jax.jit(f) if compiled else f, (x, y), order=2, modes=[mode])


def test_jax_finds_the_derivatives_of_float32_right() -> None:
    x, y = np.random.default_rng(1).standard_normal((2, 3, 2)).astype(np.float32)
    check_grads(torch2jax(in_torch), (x, y), order=2, modes=["fwd", "rev"], atol=0.05, rtol=0.05)


class Sine(torch.autograd.Function):
    """Written the old way, which torch.func and torch.vmap refuse."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.saved_tensors[0].cos()


@pytest.mark.filterwarnings("ignore:jax.vmap calls")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_function_that_torch_func_refuses_has_every_transform_too(name: str) -> None:
    with jax.enable_x64(True):
        x, y = np.random.default_rng(0).standard_normal((2, 2, 2))
        x, y = jnp.asarray(x), jnp.asarray(y)
        transform = TRANSFORMS[name]
        f = torch2jax(lambda x, y: Sine.apply(x) * y / (1 + x * x))
        assert_same(jax.jit(transform(f))(x, y), transform(in_jax)(x, y), x.dtype)


def test_a_batch_is_one_call() -> None:
    shapes = []

    def f(x: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(x.shape))
        return x * 2

    x = jnp.arange(12.0).reshape(4, 3)
    wrapped = torch2jax(f, output_shapes=x[0])
    np.testing.assert_array_equal(jax.jit(jax.vmap(wrapped))(x), x * 2)
    assert len(shapes) == 1


def test_a_batch_of_what_torch_vmap_refuses_is_a_loop_and_says_so_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    x = jnp.arange(12.0).reshape(4, 3)
    wrapped = torch2jax(f, x[0])
    with pytest.warns(
        UserWarning, match=r"jax.vmap calls f once for each of 4 elements.*\.item\(\)"
    ):
        found = jax.vmap(wrapped)(x)
    np.testing.assert_array_equal(found, x * x.sum(1, keepdims=True))
    np.testing.assert_array_equal(jax.vmap(wrapped)(x), found)  # a warning would be an error here


def test_sequential_is_a_loop_without_a_word() -> None:
    calls = []

    def f(x: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(x.shape))
        return x + 1

    x = jnp.arange(12.0).reshape(4, 3)
    wrapped = torch2jax(f, output_shapes=x[0], vmap_method="sequential")
    np.testing.assert_array_equal(jax.vmap(wrapped)(x), x + 1)
    assert calls == [(3,)] * 4


def test_a_batch_without_elements() -> None:
    found = jax.vmap(torch2jax(lambda x: x.sum()))(jnp.zeros((0, 3)))
    assert found.shape == (0,)


def test_complex_derivatives_are_as_jax_defines_them() -> None:
    z = jnp.array([1.0 + 2.0j, -0.5 + 0.25j])
    found = jax.grad(torch2jax(lambda z: (z * z).sum()), holomorphic=True)(z)
    np.testing.assert_allclose(
        found, jax.grad(lambda z: (z * z).sum(), holomorphic=True)(z), rtol=1e-6
    )
    found = jax.grad(torch2jax(lambda z: (z * z.conj()).real.sum() + (z**3).imag.sum()))(z)
    wanted = jax.grad(lambda z: (z * z.conj()).real.sum() + (z**3).imag.sum())(z)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    x = jnp.array([0.5, 2.0])
    found = jax.grad(lambda x: abs(torch2jax(lambda x: torch.exp(1j * x) * x)(x)).sum())(x)
    np.testing.assert_allclose(
        found, jax.grad(lambda x: abs(jnp.exp(1j * x) * x).sum())(x), rtol=1e-6
    )


def test_integers_among_arguments_and_results_have_no_gradient() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[i].sum(), x.argmax()

    x, i = jnp.array([1.0, 5.0, 3.0]), jnp.array([0, 0, 2])
    wrapped = torch2jax(f)
    gradient, largest = jax.grad(lambda x: wrapped(x, i), has_aux=True)(x)
    np.testing.assert_array_equal(gradient, [2.0, 0.0, 1.0])
    assert int(largest) == 1


def test_a_result_that_depends_on_nothing_has_zeros() -> None:
    f = torch2jax(lambda x, y: (x.sum(), torch.ones(2), y * 0 + 1))
    np.testing.assert_array_equal(jax.grad(lambda x: f(x, x)[1].sum())(jnp.ones(2)), [0.0, 0.0])
    np.testing.assert_array_equal(
        jax.jvp(lambda x: f(x, x)[1], (jnp.ones(2),), (jnp.ones(2),))[1], [0.0, 0.0]
    )


def test_arguments_that_are_not_to_be_differentiated() -> None:
    f = torch2jax(lambda x, y: (x * y).sum(), nondiff_argnums=1)
    gx, gy = jax.grad(f, argnums=(0, 1))(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))
    np.testing.assert_array_equal(gx, [3.0, 4.0])
    np.testing.assert_array_equal(gy, [0.0, 0.0])


def test_torch_code_that_takes_derivatives_itself() -> None:
    def energy(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        return (slope**2).sum()

    x = jnp.array([0.3, 1.0, -2.0])
    np.testing.assert_allclose(torch2jax(energy)(x), (jnp.cos(x) ** 2).sum(), rtol=1e-6)
    found = jax.jit(jax.grad(torch2jax(energy)))(x)
    np.testing.assert_allclose(found, -2 * jnp.cos(x) * jnp.sin(x), rtol=1e-5, atol=1e-6)


def test_random_numbers_come_from_a_key_and_are_the_same_in_the_derivative() -> None:
    f = torch2jax(lambda x: torch.nn.functional.dropout(x, 0.5), rng=True)
    x, key = jnp.ones(64), jax.random.key(3)
    before = torch.get_rng_state()
    value, gradient = jax.jit(jax.value_and_grad(lambda x: f(key, x).sum()))(x)
    assert torch.equal(torch.get_rng_state(), before)
    mask = f(key, x)
    np.testing.assert_array_equal(gradient, mask)
    assert float(value) == float(mask.sum())
    assert not np.array_equal(f(jax.random.key(4), x), mask)
    masks = jax.vmap(f, in_axes=(0, None))(jax.random.split(key, 3), x)
    np.testing.assert_array_equal(masks[1], f(jax.random.split(key, 3)[1], x))


def test_random_numbers_without_a_key_are_told_at_the_derivative() -> None:
    f = torch2jax(lambda x: torch.nn.functional.dropout(x, 0.5).sum())
    with pytest.warns(UserWarning, match="draws random numbers.*rng=True"):
        jax.grad(f)(jnp.ones(8))
