"""JAX functions called with torch tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
import torch

import jaxtorch


def test_values_structure_and_gradients_of_any_order() -> None:
    def f(a: jax.Array, b: jax.Array) -> dict[str, jax.Array]:
        return {"product": jnp.sin(a) * b, "place": jnp.argmax(a), "sum": (a @ b).sum()}

    x = torch.randn(3, 4, device="jax", requires_grad=True)
    y = torch.randn(4, device="jax", requires_grad=True)
    out = jaxtorch.call_jax(f, x, y)
    assert not out["place"].requires_grad
    first = torch.autograd.grad(out["product"].sum() + out["sum"], [x, y], create_graph=True)
    second = torch.autograd.grad(first[0].pow(2).sum() + first[1].sum(), [x, y])
    a, b = (t.detach().cpu().requires_grad_() for t in (x, y))
    expected = torch.autograd.grad(
        (torch.sin(a) * b).sum() + (a @ b).sum(), [a, b], create_graph=True
    )
    expected_second = torch.autograd.grad(expected[0].pow(2).sum() + expected[1].sum(), [a, b])
    for ours, theirs in zip([*first, *second], [*expected, *expected_second], strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_a_custom_gradient_holds_eagerly_and_captured() -> None:
    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 100,))
    x = torch.ones(3, device="jax", requires_grad=True)
    for call in (jaxtorch.torch_view(f), jaxtorch.pure(lambda x: jaxtorch.call_jax(f, x))):
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        assert torch.equal(gradient, torch.full_like(x, 100.0))

    @jaxtorch.jit
    def step() -> None:
        jaxtorch.call_jax(f, x).sum().backward()

    step()
    assert torch.equal(x.grad, torch.full_like(x, 100.0))


def test_one_compilation_a_signature() -> None:
    x = torch.ones(5, device="jax")
    f = jaxtorch.torch_view(lambda x, n: x * n)
    f(x, 2)
    count = jaxtorch.compile_count()
    for _ in range(3):
        f(x, 2)
    assert jaxtorch.compile_count() == count
    assert torch.equal(f(x, 3), x * 3)


def test_a_tensor_elsewhere_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"\.jax\(\)"):
        jaxtorch.call_jax(jnp.sin, torch.ones(3))


class Pair(NamedTuple):
    """A pytree whose second part may be missing."""

    first: object
    second: object = None


@pytest.mark.parametrize(
    "tree",
    [
        lambda x: {"a": None, "b": x},
        lambda x: [None, x, None],
        lambda x: (x, {"n": None, "m": [x]}),
        lambda x: Pair(x),
        lambda x: Pair(None, Pair(x, "a name")),
        lambda x: {"t": (), "u": x},
    ],
    ids=["dict", "list", "nested", "named tuple", "strings", "empty"],
)
@pytest.mark.parametrize(
    "front", [lambda f: f, jaxtorch.pure, jaxtorch.jit], ids=["eager", "pure", "jit"]
)
def test_a_pytree_may_have_places_without_arrays(tree: Any, front: Any) -> None:
    def total(tree: object, scale: object = None, more: object = None) -> jax.Array:
        arrays = [leaf for leaf in jax.tree.leaves((tree, scale)) if not isinstance(leaf, str)]
        assert more is None
        return sum((jnp.sin(a).sum() for a in arrays), jnp.float32(0))

    x = torch.randn(3, device="jax")
    call = front(lambda x: jaxtorch.call_jax(total, tree(x), scale=x, more=None))
    count = 1 + sum(leaf is x for leaf in jax.tree.leaves(tree(x)))
    torch.testing.assert_close(call(x), count * x.sin().sum())
