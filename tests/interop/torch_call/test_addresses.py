"""`torch2jax` of functions that take addresses (`data_ptr()`): they see JAX's own memory, and cannot change it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxtorch import torch2jax

Array = jax.Array


def floats_at(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


class Reader:
    """Doubles, by the memory at an address, and notes the addresses."""

    def __init__(self, of: Callable[[torch.Tensor], torch.Tensor] = lambda x: x):
        self.of, self.seen = of, []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = self.of(x)
        self.seen.append(x.data_ptr())
        return torch.from_numpy(floats_at(x.data_ptr(), x.numel()) * 2).view(x.shape)

    __name__ = "reader"


def pointer(x: Array) -> int:
    return int(x.unsafe_buffer_pointer())


x = jnp.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
def test_the_address_is_that_of_jaxs_memory(declared: bool, jitted: bool) -> None:
    reader = Reader()
    f = torch2jax(reader, output_shapes=x if declared or jitted else None)
    f = jax.jit(f) if jitted else f
    np.testing.assert_array_equal(f(x), x * 2)
    first = len(reader.seen)
    for _ in range(3):
        np.testing.assert_array_equal(f(x), x * 2)
    assert reader.seen[first:] == [pointer(x)] * 3  # one run a call
    assert not declared or first == 1


def test_the_first_eager_call_sees_it_too() -> None:
    reader = Reader()
    torch2jax(reader)(x)
    assert pointer(x) in reader.seen


@pytest.mark.parametrize(
    ("of", "offset"),
    [
        (lambda x: x.view(-1), 0),
        (lambda x: x[1:], 16),
        (lambda x: x.detach()[2, 1:], 36),
        (lambda x: x.requires_grad_()[2], 32),
    ],
)
def test_the_address_of_a_view(of: Any, offset: int) -> None:
    reader = Reader(of)
    f = torch2jax(reader)
    for _ in range(2):
        expected = torch.from_numpy(np.array(x))
        np.testing.assert_array_equal(f(x), of(expected).detach() * 2)
    assert reader.seen[-1] == pointer(x) + offset


def test_tensors_of_its_own_have_their_addresses() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        floats_at(out.data_ptr(), out.numel())[:] = floats_at(x.data_ptr(), x.numel()) + 1
        lazy = out._lazy_clone()
        floats_at(lazy.data_ptr(), 1)[:] = 100.0  # its own memory, from here on
        return out

    g = torch2jax(f)
    for _ in range(3):
        np.testing.assert_array_equal(g(x), x + 1)


def writer(x: torch.Tensor) -> torch.Tensor:
    floats_at(x.data_ptr(), x.numel())[:] = 7.0
    return x.clone()


def adder(x: torch.Tensor) -> torch.Tensor:
    assert x.data_ptr()
    return x.add_(7.0)


def exporter(x: torch.Tensor) -> torch.Tensor:
    assert x.data_ptr()
    return torch.from_numpy(x.numpy() + 7)


def later(x: torch.Tensor) -> torch.Tensor:
    """Writes only once it is known to read."""
    assert x.data_ptr()
    later.calls += 1  # type: ignore[attr-defined]
    return x.add_(7.0) if later.calls > 3 else x + 7  # type: ignore[attr-defined]


@pytest.mark.parametrize("f", [writer, adder, exporter, later])
@pytest.mark.parametrize("declared", [False, True])
def test_jaxs_memory_is_never_written_to(f: Any, declared: bool) -> None:
    later.calls = 0  # type: ignore[attr-defined]
    before = np.array(x)
    g = torch2jax(f, output_shapes=x if declared else None)
    for _ in range(6):
        expected = np.full_like(before, 7) if f is writer else before + 7
        np.testing.assert_array_equal(g(x), expected)
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("value", [np.nan, -0.0])
def test_special_values_are_no_writes(value: float) -> None:
    reader, special = Reader(), jnp.full(3, value, jnp.float32)
    f = torch2jax(reader, output_shapes=special)
    f(special)
    np.testing.assert_array_equal(f(special), special * 2)
    assert reader.seen[-1] == pointer(special)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_small_and_empty_arrays(shape: tuple[int, ...]) -> None:
    f = torch2jax(lambda x: x.clone() if x.data_ptr() else x + 0)
    value = jnp.ones(shape)
    for _ in range(2):
        np.testing.assert_array_equal(f(value), value)


def test_derivatives_and_batches() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            values = floats_at(x.data_ptr(), x.numel()) ** 3
            return torch.from_numpy(values).view(x.shape)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * grads[0]

    f = torch2jax(Cube.apply, output_shapes=jnp.ones(4))
    row = x[1]
    for _ in range(2):
        gradient = jax.jit(jax.grad(lambda v: f(v).sum()))(row)
        np.testing.assert_allclose(gradient, 3 * row**2)
    with pytest.warns(UserWarning, match=r"torch\.vmap cannot"):
        np.testing.assert_allclose(jax.vmap(f)(x), x**3)
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(x), x**3)
