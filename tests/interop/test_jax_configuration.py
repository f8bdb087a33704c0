"""A JAX function called from torch is compiled again under another configuration of JAX, as by `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxtorch

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
Tensor = torch.Tensor
Change = Callable[[], AbstractContextManager[object]]


@contextmanager
def updated(name: str, value: object) -> Iterator[None]:
    """As by `jax.config.update` in a cell, for all threads."""
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


CHANGES: dict[str, Change] = {
    "x64": lambda: jax.enable_x64(True),
    "precision": lambda: jax.default_matmul_precision("highest"),
    "precision for all": lambda: updated("jax_default_matmul_precision", "float32"),
    "rank promotion": lambda: jax.numpy_rank_promotion("warn"),
    "random bits": lambda: jax.threefry_partitionable(not jax.config.jax_threefry_partitionable),
    "device": lambda: jax.default_device(jax.devices()[0]),
    "mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("d",))),
}


def seen(x: jax.Array) -> jax.Array:
    """A result that says under which configuration it was traced."""
    config = jax.config
    values = (
        jnp.float32(bool(config.jax_threefry_partitionable)),
        jnp.float32(config.jax_numpy_rank_promotion == "warn"),
        jnp.float32(str(config.jax_default_matmul_precision) in ("highest", "float32")),
        jax.random.uniform(jax.random.key(0), dtype=jnp.float32),
    )
    return (x @ x).sum() + jnp.stack(values)


Code = Callable[[Tensor], Tensor]
JaxCode = Callable[[jax.Array], jax.Array]


def by_call(function: JaxCode) -> Code:
    return lambda x: jaxtorch.call_jax(function, x)


FRONTS: dict[str, Callable[[JaxCode], Code]] = {
    "call_jax": by_call,
    "torch_view": jaxtorch.torch_view,
    "pure": lambda function: jaxtorch.pure(by_call(function)),
    "jit": lambda function: jaxtorch.jit(by_call(function)),
    "compile": lambda function: torch.compile(by_call(function), backend="jax", fullgraph=True),
    "compile with eager": lambda function: torch.compile(
        by_call(function), backend="eager", fullgraph=True
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_compiled_again_and_only_then(front: Callable[[JaxCode], Code], change: Change) -> None:
    call = front(lambda x: seen(x))  # a function of this test's own, of which nothing is known
    x = torch.randn(3, 3, device="jax")
    array = jaxtorch.to_jax(x)

    def check() -> int:
        before = jaxtorch.compile_count()
        result = call(x)
        np.testing.assert_allclose(jaxtorch.to_jax(result), seen(array), rtol=1e-6)
        return jaxtorch.compile_count() - before

    check()
    assert check() == 0
    with change():
        assert check() == 1
        assert check() == 0
    assert check() == 0


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_gradients_by_the_configuration_of_the_call(change: Change) -> None:
    """The backward pass comes after the block."""
    x = torch.randn(3, 3, device="jax", requires_grad=True)
    expected = torch.autograd.grad((x @ x).sum(), x)[0]
    for _ in range(2):
        with change():
            y = jaxtorch.call_jax(lambda a: a @ a, x)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)
