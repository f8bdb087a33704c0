"""Derivatives, batches and wrapping under jit, as in wrap-torch2jax's tests, with the import changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import ShapeDtypeStruct

from jaxtorch import torch2jax, torch2jax_with_vjp, tree_j2t

from .twins import FLOATS, TOLERANCE, close, like, normal

DERIVATIVES = {"func": True, "autograd": False}


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """float64 exists, as in their tests."""
    with jax.enable_x64(True):
        yield


class Squares(torch.autograd.Function):
    """A function of the kind that torch.func refuses: it saves what it needs in `forward`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x**2 * y**2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return 2 * x * y**2 * gradient, 2 * y * x**2 * gradient


@pytest.mark.parametrize("use_torch_vjp", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("square", [lambda x, y: x**2 * y**2, Squares.apply], ids=["new", "old"])
def test_first_and_second_derivatives(square: Any, dtype: Any, use_torch_vjp: bool) -> None:
    ours = torch2jax_with_vjp(
        square, torch.randn(5, 7), torch.randn(5, 7), depth=2, use_torch_vjp=use_torch_vjp
    )
    x, y = normal(0, (5, 7), dtype), normal(1, (5, 7), dtype)

    def derivatives(f: Any) -> list[Any]:
        g = jax.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))
        h = jax.grad(lambda x, y: sum(map(jnp.sum, g(x, y))), argnums=(0, 1))
        return [f, g, h]

    twins = zip(derivatives(ours), derivatives(lambda x, y: x**2 * y**2), strict=True)
    for function, expected in twins:
        close(function(x, y), expected(x, y), TOLERANCE[dtype])
        close(jax.jit(function)(x, y), expected(x, y), TOLERANCE[dtype])


def torch_mix(a: torch.Tensor, b: torch.Tensor, c: Any = None) -> torch.Tensor:
    return torch.sin(a + 2 * b) * torch.softmax(a - b, dim=0).reshape(-1)[0]


def jax_mix(a: jax.Array, b: jax.Array, c: Any = None) -> jax.Array:
    return jnp.sin(a + 2 * b) * jax.nn.softmax(a - b, axis=0).reshape(-1)[0]


@pytest.mark.parametrize("use_torch_vjp", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("argnums", [(0,), (1,), (0, 1)])
def test_jacobian_and_hessian(argnums: tuple[int, ...], dtype: Any, use_torch_vjp: bool) -> None:
    a, b = normal(0, (2, 3), dtype), normal(1, (2, 3), dtype)
    ours = torch2jax_with_vjp(torch_mix, *tree_j2t((a, b)), use_torch_vjp=use_torch_vjp)
    for times in (1, 2):
        both = []
        for f in (ours, jax_mix):
            for _ in range(times):
                f = jax.jacobian(f, argnums=argnums)
            both.append(jax.jit(f)(a, b))
        close(*both, 10 * TOLERANCE[dtype])


@pytest.mark.parametrize("use_torch_vjp", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.parametrize("place", [1, 2])
def test_an_argument_without_gradients(place: int, use_torch_vjp: bool) -> None:
    """Integers, named by `nondiff_argnums` or not, between the others or after them."""

    def placed(mix: Any) -> Any:
        return (lambda a, c, b: mix(a, b, c)) if place == 1 else mix

    a, b = normal(0, (10,)), normal(1, (10,))
    c = jnp.arange(10)
    args = (a, c, b) if place == 1 else (a, b, c)
    argnums = (0, 3 - place)
    for options in ({"nondiff_argnums": (place,)}, {"nondiff_argnums": place}, {}):
        ours = torch2jax_with_vjp(
            placed(torch_mix),
            *tree_j2t(args),
            depth=2,
            use_torch_vjp=use_torch_vjp,
            **options,  # type: ignore[arg-type]
        )
        close(ours(*args), placed(jax_mix)(*args))
        twins = ours, placed(jax_mix)
        close(*[jax.grad(lambda *args, f=f: f(*args).sum(), argnums)(*args) for f in twins])
        close(*[jax.jacobian(f, argnums=argnums)(*args) for f in twins])


def test_a_mask_of_what_has_no_gradients() -> None:
    tree = {"w": normal(0, (3,)), "b": normal(1, (3,))}
    ours = torch2jax_with_vjp(
        lambda tree: (tree["w"] * tree["b"]).sum(),
        tree_j2t(tree),
        nondiff_mask=({"w": False, "b": True},),
    )
    close(jax.grad(ours)(tree), {"w": tree["b"], "b": jnp.zeros(3, jnp.float32)})


# -- wrapped under jit


def torch_two(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.sin(a + b), torch.mean(torch.cos(a - b))


def jax_two(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
    return jnp.sin(a + b), jnp.mean(jnp.cos(a - b)), a - b + c


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("wrap", [torch2jax, torch2jax_with_vjp])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3), (5, 10), (7,)])
def test_wrapped_inside(shape: tuple[int, ...], dtype: Any, wrap: Any, transform: Any) -> None:
    """With gradients also through plain `torch2jax`, which has none in theirs."""

    def compute(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
        shapes = (like(a), ShapeDtypeStruct((), b.dtype))
        return *wrap(torch_two, like(a), like(b), output_shapes=shapes)(a, b), a - b + c

    a, b, c = (normal(seed, shape, dtype) for seed in range(3))
    close(transform(compute)(a, b, c), jax_two(a, b, c), TOLERANCE[dtype])
    gradients = [
        transform(jax.grad(lambda *args, f=f: f(*args)[1], (0, 1, 2)))(a, b, c)
        for f in (compute, jax_two)
    ]
    close(*gradients, TOLERANCE[dtype])


# -- vmap


@pytest.mark.parametrize("dtype", FLOATS)
def test_vmap_of_a_solver(dtype: Any) -> None:
    root = normal(0, (10, 5, 5), dtype)
    a = jnp.swapaxes(root, -1, -2) @ root + jnp.eye(5, dtype=dtype)
    x = normal(1, (5, 7), dtype)
    jax_fn = torch2jax_with_vjp(torch.linalg.solve, a[0], x, output_shapes=x, depth=2)
    solved = jax.jit(jax.vmap(jax_fn, in_axes=(0, None)))(a, x)
    close(a @ solved, jnp.broadcast_to(x, (10, 5, 7)), 20 * TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("vmap_method", "calls"), [("sequential", 572), ("broadcast_all", 1), ("expand_dims", 1)]
)
def test_how_often_vmap_calls(vmap_method: Any, calls: int) -> None:
    count = 0

    def torch_fn(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return 2 * x

    x, batch = normal(0, (64,)), normal(1, (572, 64))
    jax_fn = torch2jax(torch_fn, x, output_shapes=x, vmap_method=vmap_method)
    close(jax_fn(x), 2 * x)
    assert count == 1
    close(jax.vmap(jax_fn)(batch), 2 * batch)
    assert count == 1 + calls
