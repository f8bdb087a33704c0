"""Writes of values that were read from other elements of the same tensor: XLA on the CPU gets some wrong by itself."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxtorch

Tensor = torch.Tensor
DOORS: dict[str, Callable[..., Callable[..., object]]] = {
    "eager": lambda f: f,
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}


def rows_down(a: Tensor) -> object:
    b = a + 1
    b[1:] = b[:-1].clone()
    return b.view(1, *b.shape)


def rows_up(a: Tensor) -> object:
    b = a + 1
    b[:-1] = b[1:].clone() * 2
    return b.view(1, *b.shape), b + 1


def a_copy(a: Tensor) -> object:
    b = a.clone()
    b[1:] = a[:-1]
    return b.view(1, *b.shape), b.sin()


def columns(a: Tensor) -> object:
    b = a * 2
    b[:, 1:] = b[:, :-1].clone()
    return b.t(), b + 1


def strided(a: Tensor) -> object:
    b = a * 1.0
    t = b[:2, :2] * 2
    b[1:3, :4:2].sub_(t)
    return torch.cos(b) * b, b + 1


def two_views(a: Tensor) -> object:
    b = a * 1.5
    b[1:3, :4:2].sub_(b[:2, :2])
    return torch.cos(b) * b, b + 1


def flat(a: Tensor) -> object:
    b = a + 0
    f = b.view(-1)
    f[1:] = f[:-1].clone() * 2
    return b.sum(1), b.view(2, -1)


def rolled_row(a: Tensor) -> object:
    b = a + 1
    b[2] = b[2].roll(1)
    return b.view(1, *b.shape), b.cos()


def rolled_row_by_a_tensor(a: Tensor) -> object:
    b = a + 1
    i = (a[0, :1] * 0).long() + 1
    b[i] = b[i].roll(1, 1)
    return b.view(1, *b.shape), b.cos()


def added_row(a: Tensor) -> object:
    b = a + 1
    i = (a[0, :1] * 0).long() + 1
    b.index_add_(0, i, b[i].roll(1, 1)).index_copy_(0, i + 1, b[i + 1].flip(1))
    return b.view(1, *b.shape), b.cos()


def cumulated(a: Tensor) -> object:
    b = a + 1
    b[1:].cumsum_(0)
    return b.view(1, *b.shape), b.cos()


def flipped(a: Tensor) -> object:
    b = a + 1
    b[1:] = b[1:].flip(0)
    return b.view(1, *b.shape), b.cos()


def a_history(a: Tensor) -> object:
    b = a * 1.0
    for i in range(3):
        b[1:] = b[:-1].clone()
        b[0] = b[1] * 0.5 + i
    return b.view(-1).cumsum(0), b


def a_stencil(a: Tensor) -> object:
    u = a * 1.0
    for _ in range(3):
        u[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u.view(1, *u.shape), u.sum(0)


def a_diagonal(a: Tensor) -> object:
    b = a + 1
    b.diagonal().copy_(b[0, : b.diagonal().shape[0]].clone())
    return b.view(1, *b.shape), b.cos()


FUNCTIONS = [
    *(rows_down, rows_up, a_copy, columns, strided, two_views, flat, rolled_row, cumulated),
    *(rolled_row_by_a_tensor, added_row, flipped, a_history, a_stencil, a_diagonal),
]


@pytest.mark.parametrize("shape", [(4, 4), (8, 16), (6, 33)], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("door", DOORS)
def test_results_are_those_of_the_cpu(
    door: str, function: Callable[[Tensor], object], shape: tuple[int, int]
) -> None:
    a = torch.arange(float(shape[0] * shape[1])).reshape(shape) / 16
    torch.compiler.reset()
    expected, actual = function(a.clone()), DOORS[door](function)(a.to("jax"))
    torch.testing.assert_close(actual, expected, check_device=False, rtol=1e-4, atol=1e-4)


def test_an_argument_that_a_step_writes() -> None:
    def step(a: Tensor) -> object:
        a[1:3, ::2].sub_(a[:2, :2])
        return torch.cos(a * 0.5) * a, a + 1

    a = torch.arange(16.0).reshape(4, 4) / 16 + 2
    on_device = a.to("jax")
    step_of_device = jaxtorch.jit(step)
    for _ in range(2):
        # The CPU reads elements that it has already written; the values of before are meant.
        part = (a[1:3, ::2] - a[:2, :2]).clone()
        a[1:3, ::2] = part
        expected = torch.cos(a * 0.5) * a, a + 1
        torch.testing.assert_close(step_of_device(on_device), expected, check_device=False)
    torch.testing.assert_close(on_device.cpu(), a)


def test_gradients_are_those_of_the_cpu() -> None:
    gradients = []
    for device in ("cpu", "jax"):
        a = torch.arange(16.0).reshape(4, 4).div(16).to(device).requires_grad_()
        f = jaxtorch.pure(a_history) if device == "jax" else a_history
        sums, b = f(a)  # type: ignore[misc]
        (sums.sin().sum() + (b * b).sum()).backward()
        assert a.grad is not None
        gradients.append(a.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_xla_still_needs_the_workaround() -> None:
    """https://github.com/openxla/xla/issues/49176. If this fails, `lowerings/separate.py` can go."""

    def f(x: jax.Array) -> jax.Array:
        base = x + 1
        update = jax.lax.dynamic_update_slice(base, base[:3], (1, 0, 0))
        return update.reshape(1, 4, 1)

    x = jnp.arange(4, dtype=np.int32).reshape(4, 1, 1)
    assert jax.jit(f)(x).ravel().tolist() != [1, 1, 2, 3]
