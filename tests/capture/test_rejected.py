"""Pallas kernels that cannot be compiled for a TPU: the message has the line of the kernel or of its call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl

import jaxtorch
from jaxtorch.capture.tpu import CompileError
from tests.libtpu import needs_libtpu


def sorts(x: Any, o: Any) -> None:
    o[...] = jnp.sort(x[...], axis=-1)  # here


def reverses(x: Any, o: Any) -> None:
    o[...] = x[...][::-1]  # here


def changes_width(x: Any, o: Any) -> None:
    narrow = x[...].astype(jnp.int8).reshape(x.shape[0], -1, 4)
    o[...] = jax.lax.bitcast_convert_type(narrow, jnp.int32).repeat(4, 1).astype(x.dtype)  # here


def starts_anywhere(x: Any, o: Any) -> None:
    i = x[0, 0].astype(jnp.int32)
    o[...] = jnp.broadcast_to(x[:, pl.ds(i, 1)], x.shape)  # here


def adds(x: Any, o: Any) -> None:
    o[...] = x[...] + 1


def run(kernel: Callable[..., None], x: jax.Array, **options: Any) -> jax.Array:
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out, **options)(x)  # the call


def marked(mark: str, kernel: Callable[..., None]) -> str:
    lines, first = inspect.getsourcelines(run if mark == "# the call" else kernel)
    return f"line {first + next(i for i, line in enumerate(lines) if mark in line)}"


ROW = pl.BlockSpec((1, 16), lambda i: (i, 0))
# kernel, shape, options, where the error is, a word of the message
REJECTED = {
    "no lowering, in a function of JAX": (sorts, (8, 128), {}, "# here", "sort"),
    "no lowering": (reverses, (8, 128), {}, "# here", "rev"),
    "a lowering that refuses": (changes_width, (8, 128), {}, "# here", "bitwidths"),
    "Mosaic": (starts_anywhere, (8, 256), {}, "# here", "multiple of 128"),
    "too much memory": (adds, (16384, 4096), {}, "# the call", "would exceed memory"),
    "blocks": (
        adds,
        (4, 16),
        {"grid": 4, "in_specs": [ROW], "out_specs": ROW},
        "# the call",
        "divisible by 8 and 128",
    ),
}


def by_pure(function: Callable[..., torch.Tensor], x: torch.Tensor) -> Any:
    return jaxtorch.pure(function).lower(x, target="v5e:1x1")


def by_jit(function: Callable[..., torch.Tensor], x: torch.Tensor) -> Any:
    return jaxtorch.jit(function).lower(x, target="v5e:1x1")


@needs_libtpu
@pytest.mark.parametrize("lower", [by_pure, by_jit])
@pytest.mark.parametrize("name", REJECTED)
def test_the_line_of_a_rejected_kernel(name: str, lower: Callable[..., Any]) -> None:
    kernel, shape, options, mark, word = REJECTED[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.call_jax(lambda a: run(kernel, a, **options), x)

    lowered = lower(function, torch.empty(shape, device="meta"))
    with pytest.raises(CompileError, match=word) as error:
        lowered.compile()
    assert str(error.value).startswith(f"{__file__}, {marked(mark, kernel)}: the ")
    assert "v5e:1x1" in str(error.value)


@needs_libtpu
def test_an_operation_without_a_lowering() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x)  # here

    lowered = by_pure(function, torch.empty(4, 4, device="meta"))
    with pytest.raises(CompileError, match="'eig' not found for platform tpu") as error:
        lowered.compile()
    assert str(error.value).startswith(f"{__file__}, {marked('# here', function)}: the ")


def test_here_an_error_of_the_lowering_is_jaxs_own() -> None:
    """Without a target nothing is translated: it is the error that a call of the function raises."""
    lowered = jaxtorch.pure(lambda x: jaxtorch.call_jax(lambda a: run(sorts, a), x)).lower(
        torch.ones(8, 128, device="jax")
    )
    with pytest.raises(ValueError, match="interpret mode"):
        lowered.compile()


@needs_libtpu
def test_a_kernel_of_libtpu_itself() -> None:
    """Its message names a line of a text that is no file."""

    def function(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b, offs=ends)  # here

    a = torch.empty(256, 128, dtype=torch.float16, device="meta")
    b = torch.empty(4, 128, 256, dtype=torch.float16, device="meta")
    ends = torch.empty(4, dtype=torch.int32, device="meta")
    lowered = jaxtorch.pure(function).lower(a, b, ends, target="v5e:1x1")
    with pytest.raises(CompileError, match="Mosaic") as error:
        lowered.compile()
    assert str(error.value).startswith(f"{__file__}, {marked('# here', function)}: the ")
