"""`static_argnames` and `donate`: arguments chosen by name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch

COMPILERS = pytest.mark.parametrize("compiler", [jaxtorch.pure, jaxtorch.jit], ids=["pure", "jit"])


def is_gone(tensor: torch.Tensor) -> bool:
    try:
        tensor.sum()
    except RuntimeError as error:
        assert "was donated" in str(error)  # noqa: PT017  # whether it is raised is the answer
        return True
    return False


@COMPILERS
def test_a_static_number_is_part_of_the_program(compiler: Any) -> None:
    def power(x: torch.Tensor, n: int, scale: float = 1.0) -> torch.Tensor:
        return x**n * scale

    f = compiler(power, static_argnames="n")
    x = torch.arange(4.0, device="jax")
    for n in (2, 3, 4, 3):
        assert torch.equal(f(x, n), x**n)
        assert torch.equal(f(x, n=n), x**n)
    assert f.cache_info().misses == 6  # each number once by place and once by name
    for scale in (2.0, 3.0, 4.0, 5.0):
        assert torch.equal(f(x, 2, scale), x**2 * scale)
    assert f.cache_info().currsize <= 6 + 2  # scale is not a part of it from its second value on


@COMPILERS
def test_donated_arguments_are_gone(compiler: Any) -> None:
    f = compiler(lambda state, x: state + x, donate="state")
    state, x = torch.ones(64, device="jax"), torch.ones(64, device="jax")
    new = f(state, x)
    assert new.tolist() == [2.0] * 64
    assert is_gone(state)
    assert not is_gone(x)


@COMPILERS
def test_a_donated_array_that_jax_holds_stays(compiler: Any) -> None:
    import jax.numpy as jnp

    f = compiler(lambda state: state * 2, donate=["state"])
    state = torch.ones(64, device="jax")
    held = jnp.from_dlpack(state)
    f(state)
    assert held.tolist() == [1.0] * 64


@COMPILERS
def test_what_no_output_can_reuse_is_kept(compiler: Any) -> None:
    f = compiler(lambda a, b: (a + b).sum(), donate=("a", "b"))
    a = torch.ones(64, device="jax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of a donation that it cannot use
        f(a, a.clone())
    assert not is_gone(a)


def test_nothing_is_donated_where_gradients_need_it() -> None:
    f = jaxtorch.pure(lambda x, w: (x * w).sum(), donate="x")
    x, w = torch.ones(8, device="jax"), torch.ones(8, device="jax", requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(x, w).backward()
    assert torch.equal(w.grad, x)  # type: ignore[arg-type]  # backward has set it


@COMPILERS
def test_names_are_the_functions(compiler: Any) -> None:
    with pytest.raises(ValueError, match=r"no parameter is named 'm'; the function's are: x, n"):
        compiler(lambda x, n: x, static_argnames="m")
    with pytest.raises(ValueError, match="'inputs'"):
        compiler(nn.Linear(2, 2), donate="inputs")
    assert (
        compiler(nn.Linear(2, 2).to("jax"), donate="input")(torch.ones(1, 2, device="jax"))
        is not None
    )


@COMPILERS
def test_a_tensor_cannot_be_static(compiler: Any) -> None:
    f = compiler(lambda x, n: x * n, static_argnames="n")
    with pytest.raises(TypeError, match="static argument"):
        f(torch.ones(2, device="jax"), torch.ones(2, device="jax"))


@COMPILERS
def test_a_method(compiler: Any) -> None:
    class Scaled:
        @compiler(static_argnames=("n",))
        def times(self, x: torch.Tensor, n: int) -> torch.Tensor:
            assert type(n) is int
            return x * n

    scaled = Scaled()
    x = torch.ones(2, device="jax")
    for n in (1, 2, 3):
        assert scaled.times(x, n).tolist() == [float(n)] * 2
