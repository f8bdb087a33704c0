"""A Pallas kernel with a gradient of its own, called straight from torch code.

It runs in Pallas's interpret mode, which needs no accelerator. The gradient is another kernel, ten times the
true one, so that whatever differentiates the kernel instead of using it is found out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl

import jaxtorch
from tests.libtpu import needs_libtpu

_NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def _silu_kernel(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    o_ref[...] = x / (1 + jnp.exp(-x))


def _gradient_kernel(x_ref: Any, g_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    s = 1 / (1 + jnp.exp(-x))
    o_ref[...] = 10 * g_ref[...] * (s + x * s * (1 - s))


def _blocks(kernel: Any, *arrays: jax.Array) -> jax.Array:
    rows, columns = arrays[0].shape
    block = pl.BlockSpec((1, columns), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(rows,),
        in_specs=[block] * len(arrays),
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((rows, columns), arrays[0].dtype),
        interpret=True,
    )(*arrays)


@jax.custom_vjp
def silu(x: jax.Array) -> jax.Array:
    return _blocks(_silu_kernel, x)


silu.defvjp(lambda x: (silu(x), x), lambda x, g: (_blocks(_gradient_kernel, x, g),))


def torch_silu(x: torch.Tensor) -> torch.Tensor:
    return jaxtorch.call_jax(silu, x)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 6, device="jax", requires_grad=True)


def expected(x: torch.Tensor, scale: float = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the gradient that goes through the kernel's own, both by torch on the CPU."""
    host = x.detach().cpu().requires_grad_()
    loss = (torch.nn.functional.silu(host * 2) * 3).sum()
    loss.backward()
    assert host.grad is not None
    return loss.detach(), host.grad * scale


def loss_of(x: torch.Tensor) -> torch.Tensor:
    return (torch_silu(x * 2) * 3).sum()


@pytest.mark.parametrize("how", ["eagerly", "in pure"])
def test_values_and_the_kernels_own_gradient(how: str, x: torch.Tensor) -> None:
    call = loss_of if how == "eagerly" else jaxtorch.pure(loss_of)
    for _ in range(2):
        loss = call(x)
        (gradient,) = torch.autograd.grad(loss, x)
        value, own = expected(x)
        torch.testing.assert_close(loss.cpu(), value)
        torch.testing.assert_close(gradient.cpu(), own)


def test_a_step_of_training_in_jit(x: torch.Tensor) -> None:
    w = torch.nn.Parameter(x.detach().clone())
    optimizer = torch.optim.SGD([w], lr=0.1)

    @jaxtorch.jit
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(w)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        value, own = expected(w)
        before = w.detach().cpu()
        torch.testing.assert_close(step().cpu(), value)
        torch.testing.assert_close(w.detach().cpu(), before - 0.1 * own)


def test_the_kernel_is_whole_in_the_captured_program(x: torch.Tensor) -> None:
    """`pallas_call` is in the jaxpr of captured code, forward and backward: it was not decomposed."""
    view = jaxtorch.jax_view(loss_of)
    array = jnp.asarray(np.asarray(x.detach().cpu()))
    assert str(jax.make_jaxpr(view)(array)).count("pallas_call[") == 1
    assert str(jax.make_jaxpr(jax.grad(view))(array)).count("pallas_call[") == 2


def test_under_jaxs_transforms_by_way_of_torch(x: torch.Tensor) -> None:
    view = jaxtorch.jax_view(loss_of)
    array = jnp.asarray(np.asarray(x.detach().cpu()))
    value, own = expected(x)
    np.testing.assert_allclose(jax.jit(view)(array), value.numpy(), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(view))(array), own.numpy(), rtol=1e-4, atol=1e-5)
    batch = jnp.stack([array, array / 2])
    each = jnp.stack([view(a) for a in batch])
    np.testing.assert_allclose(jax.vmap(view)(batch), each, rtol=1e-5)


def test_in_scan(x: torch.Tensor) -> None:
    def body(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        carry = torch_silu(carry + row)
        return carry, carry.sum()

    init = torch.zeros(1, 6, device="jax")
    rows = x[:, None]
    last, sums = jaxtorch.scan(body, init, rows)
    (gradient,) = torch.autograd.grad(last.sum() + sums.sum(), x)
    carry, loss = init, torch.zeros((), device="jax")
    for row in rows:
        carry, own = body(carry, row)
        loss = loss + own
    (unrolled,) = torch.autograd.grad(loss + carry.sum(), x)
    torch.testing.assert_close(gradient, unrolled)


@needs_libtpu
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("shape", [(64, 32), (4, 16), (1, 32)])
def test_mosaic_compiles_the_kernel_of_the_notebook(
    shape: tuple[int, int], gradients: bool
) -> None:
    notebook = json.loads((_NOTEBOOKS / "04_jax_inside_torch.ipynb").read_text())
    (cell,) = (c for c in notebook["cells"] if "def silu_kernel" in "".join(c["source"]))
    source = "".join(cell["source"])
    assert "interpret=True" in source
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "pl": pl}
    exec(source.replace("interpret=True", "interpret=False"), names)
    function = jaxtorch.pure(lambda x: jaxtorch.call_jax(names["silu"], x))
    with torch.device("meta"):
        x = torch.empty(shape, requires_grad=True)
    compiled = function.lower(x, target="v5e:1x1", gradients=gradients).compile()
    kernels = compiled.as_text().count('custom_call_target="tpu_custom_call"')
    assert kernels == 1 + gradients
