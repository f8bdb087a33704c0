"""A JAX function in torch code computes in 32 or 64 bits as it does in JAX: by the user's `jax_enable_x64`.

Torch's own code has 64-bit numbers whatever JAX is set to. JAX itself is the oracle for the dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl

import jaxtorch
from tests.libtpu import needs_libtpu

FUNCTIONS: dict[str, Callable[[jax.Array], Any]] = {
    "arange": lambda x: x + jnp.arange(3.0),
    "integers": lambda x: jnp.arange(3),
    "zeros": lambda x: jnp.zeros(3),
    "random": lambda x: jax.random.normal(jax.random.key(0), (3,)),
    "linspace": lambda x: x * jnp.linspace(0.0, 1.0, 3),
    "an index": lambda x: jnp.argmax(x),
    "a number": lambda x: 1.5,
    "an integer": lambda x: 3,
    "numpy": lambda x: x * np.array([1.0, 2.0, 3.0]),
    "a cast": lambda x: x.astype(float),
    "a loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c + i, x),
    "a scan": lambda x: jax.lax.scan(lambda c, i: (c + i, c * jnp.ones(3)), x, jnp.arange(2)),
    "a jitted function": lambda x: jax.jit(lambda a: jnp.cumsum(a) + jnp.ones(3))(x),
    "sorted": lambda x: (jnp.sort(x), jnp.argsort(x)),
    "several": lambda x: {"a": x * 2, "b": (jnp.ones(2), [x.sum()])},
}
DOORS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda f: f,
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "torch.compile": lambda f: torch.compile(f, backend="jax", fullgraph=True),
    "pure in pure": lambda f: jaxtorch.pure(jaxtorch.pure(f)),
}
# dtypes that JAX has without x64
ARGUMENTS = {
    "float32": torch.tensor([3.0, 1.0, 2.0]),
    "bfloat16": torch.tensor([3.0, 1.0, 2.0], dtype=torch.bfloat16),
    "int32": torch.tensor([3, 1, 2], dtype=torch.int32),
    "complex64": torch.tensor([3.0, 1.0, 2.0], dtype=torch.complex64),
}


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch._dynamo.reset()  # each test compiles the same code with another function


def dtypes(result: Any) -> list[str]:
    return [str(leaf.dtype).removeprefix("torch.") for leaf in jax.tree.leaves(result)]


def compare(door: str, name: str, argument: torch.Tensor) -> None:
    function = FUNCTIONS[name]
    on_device = argument.to("jax")
    found = DOORS[door](lambda x: jaxtorch.call_jax(function, x))(on_device)
    # under jit every leaf is an array
    expected = jax.jit(function)(jaxtorch.to_jax(on_device))
    assert dtypes(found) == dtypes(expected)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.cpu(), jaxtorch.to_torch(b).cpu())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("door", DOORS)
def test_dtypes_are_those_of_jax(door: str, name: str) -> None:
    compare(door, name, ARGUMENTS["float32"])


@pytest.mark.parametrize("argument", ["bfloat16", "int32", "complex64"])
@pytest.mark.parametrize("name", ["integers", "zeros", "linspace", "a number", "numpy"])
def test_other_narrow_arguments(name: str, argument: str) -> None:
    compare("eager", name, ARGUMENTS[argument])
    compare("pure", name, ARGUMENTS[argument])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("door", ["eager", "pure", "jit"])
def test_with_x64_enabled_they_are_wide_as_in_jax(door: str, name: str) -> None:
    with jax.enable_x64(True):
        compare(door, name, ARGUMENTS["float32"])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in FUNCTIONS for dtype in (torch.int64, torch.float64)]
    + [("zeros", torch.complex128), ("linspace", torch.complex128)],
)
def test_a_wide_argument_stays_wide(name: str, dtype: torch.dtype) -> None:
    """JAX without x64 would make it narrow; a tensor keeps its dtype, so the function computes with 64 bits."""
    argument = ARGUMENTS["float32"].to("jax", dtype)
    function = FUNCTIONS[name]
    found = jaxtorch.call_jax(function, argument)
    with jax.enable_x64(True):
        expected = jax.jit(function)(jaxtorch.to_jax(argument))
    assert dtypes(found) == dtypes(expected)


def test_the_setting_is_read_at_each_call() -> None:
    captured = jaxtorch.pure(lambda x: jaxtorch.call_jax(FUNCTIONS["zeros"], x))
    x = torch.ones(3, device="jax")
    for function in (captured, lambda x: jaxtorch.call_jax(FUNCTIONS["zeros"], x)):
        assert function(x).dtype == torch.float32
        with jax.enable_x64(True):
            assert function(x).dtype == torch.float64
        assert function(x).dtype == torch.float32
    assert not jax.config.jax_enable_x64  # type: ignore[attr-defined]  # made at import


def test_torch_code_around_it_keeps_its_64_bits() -> None:
    def code(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        narrow = jaxtorch.call_jax(lambda a: a * jnp.arange(3.0), x)
        return narrow, narrow.double() + torch.arange(3, device="jax")

    narrow, wide = jaxtorch.pure(code)(torch.ones(3, device="jax"))
    assert (narrow.dtype, wide.dtype) == (torch.float32, torch.float64)


# -- rules of derivatives, which JAX traces later ------------------------------------------------------------------


@jax.custom_vjp
def by_vjp(x: jax.Array) -> jax.Array:
    return x**3


by_vjp.defvjp(
    lambda x: (x**3, x), lambda x, g: (g * (3 * jnp.ones(3) * x**2 + 0 * jnp.arange(3.0)),)
)


@jax.custom_jvp
def by_jvp(x: jax.Array) -> jax.Array:
    return x**3


@by_jvp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return by_jvp(x), t * jnp.full(3, 3.0) * x**2


RULES = {"custom_vjp": by_vjp, "custom_jvp": by_jvp}
INSIDE: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda a: -a, x),
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("door", ["eager", "pure", "torch.compile"])
def test_rules_of_derivatives(door: str, rule: str, inside: str) -> None:
    function = INSIDE[inside](RULES[rule])
    x = torch.tensor([1.0, 2.0, 3.0], device="jax", requires_grad=True)
    result = DOORS[door](lambda x: jaxtorch.call_jax(function, x))(x)
    assert result.dtype == torch.float32
    result.sum().backward()
    assert x.grad is not None
    expected = jax.jit(jax.grad(lambda a: function(a).sum()))(jnp.array([1.0, 2.0, 3.0]))
    assert torch.equal(x.grad.cpu(), jaxtorch.to_torch(expected).cpu())


@pytest.mark.parametrize("rule", RULES)
def test_second_derivatives(rule: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="jax", requires_grad=True)
    (first,) = torch.autograd.grad(jaxtorch.call_jax(RULES[rule], x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6.0, 12.0, 18.0]
    assert second.dtype == torch.float32


# -- Pallas ---------------------------------------------------------------------------------------------------------


def _double(x: Any, o: Any) -> None:
    i = jnp.arange(8)[:, None] * 0
    o[...] = x[...] * 2 + i.astype(x.dtype)


def _by_rows(x: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))  # Mosaic refuses an index of 64 bits
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(_double, out, grid=x.shape[0] // 8, in_specs=[rows], out_specs=rows)(x)


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return _by_rows(x)


doubled.defvjp(lambda x: (_by_rows(x), None), lambda _, g: (_by_rows(g),))


@needs_libtpu
@pytest.mark.parametrize("gradients", [False, True])
def test_a_kernel_with_a_grid_compiles_for_a_tpu(gradients: bool) -> None:
    f = jaxtorch.pure(lambda x: jaxtorch.call_jax(doubled, x).tanh())
    with torch.device("meta"):
        x = torch.empty(32, 128, requires_grad=True)
    compiled = f.lower(x, target="v5e:1x1", gradients=gradients).compile()
    assert compiled.as_text().count('custom_call_target="tpu_custom_call"') == 1 + gradients
