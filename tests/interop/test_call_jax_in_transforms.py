"""JAX functions called inside transforms of torch: `torch.vmap`, `torch.func` and forward-mode derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp

import jaxtorch

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]
X = torch.linspace(0.2, 1.8, 9, dtype=torch.float64).reshape(3, 3)


def in_jax(x: jax.Array) -> dict[str, Any]:
    return {"values": 3 * jnp.sin(x), "largest": jnp.argmax(x), "none": None}


def called(x: Tensor) -> Tensor:
    result: Tensor = jaxtorch.call_jax(in_jax, x)["values"]
    return result


def in_torch(x: Tensor) -> Tensor:
    return 3 * torch.sin(x)


def squares(f: Function) -> Function:
    return lambda x: f(x).square().sum()


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "vmap": lambda f: torch.vmap(f),
    "vmap of another dimension": lambda f: torch.vmap(f, 1, 1),
    "vmap of vmap": lambda f: torch.vmap(torch.vmap(f)),
    "grad": lambda f: grad(squares(f)),
    "grad of grad": lambda f: grad(lambda x: grad(squares(f))(x).sin().sum()),
    "vmap of grad": lambda f: torch.vmap(grad(squares(f))),
    "grad of vmap": lambda f: grad(squares(torch.vmap(f))),
    "vjp": lambda f: lambda x: vjp(f, x)[1](x)[0],
    "jvp": lambda f: lambda x: jvp(f, (x,), (x * 2,))[1],
    "jacrev": lambda f: jacrev(f),
    "jacfwd": lambda f: jacfwd(f),
    "hessian": lambda f: hessian(squares(f)),
}
WAYS: dict[str, Callable[[Function], Function]] = {
    "eager": lambda f: f,
    "pure": lambda f: jaxtorch.pure(lambda x: f(x)),
    "jit": lambda f: jaxtorch.jit(lambda x: f(x)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform(name: str, way: str) -> None:
    transform = TRANSFORMS[name]
    result = WAYS[way](transform(called))(X.jax())
    torch.testing.assert_close(result.cpu(), transform(in_torch)(X))


@pytest.mark.parametrize("way", ["eager", "pure"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_gradient_through_a_transform(name: str, way: str) -> None:
    x, y = X.jax().requires_grad_(), X.clone().requires_grad_()
    transform = TRANSFORMS[name]
    WAYS[way](transform(called))(x).cos().sum().backward()
    transform(in_torch)(y).cos().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.grad)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_tensor_that_is_not_part_of_the_transform(name: str, way: str) -> None:
    """torch failed an internal assertion about a tensor that needs a gradient."""

    def run(transform: Callable[[Function], Function], scale: Tensor, called: Function) -> Function:
        return transform(lambda x: x.square() * called(scale).sum())

    transform = TRANSFORMS[name]
    scale, other = X[0].jax().requires_grad_(), X[0].clone().requires_grad_()
    result = WAYS[way](run(transform, scale, called))(X.jax())
    expected = run(transform, other, in_torch)(X)
    torch.testing.assert_close(result.cpu(), expected)
    if way != "jit":
        result.sin().sum().backward()
        expected.sin().sum().backward()
        torch.testing.assert_close(scale.grad.cpu(), other.grad)


@pytest.mark.parametrize("name", ["vmap", "grad", "vmap of grad"])
def test_in_jax_view(name: str) -> None:
    transform = TRANSFORMS[name]
    view = jaxtorch.jax_view(lambda x: transform(called)(x).cos().sum())
    y = X.clone().requires_grad_()
    transform(in_torch)(y).cos().sum().backward()
    with jax.enable_x64(True):
        ours = jax.jit(jax.grad(view))(jnp.asarray(X.numpy()))
        torch.testing.assert_close(jaxtorch.to_torch(ours, "cpu", copy=True), y.grad)


def test_results_that_are_not_differentiable() -> None:
    x = X.jax()
    largest = torch.vmap(lambda x: jaxtorch.call_jax(in_jax, x)["largest"])(x)
    assert largest.tolist() == [2, 2, 2]
    with forward_ad.dual_level():
        result = jaxtorch.call_jax(in_jax, forward_ad.make_dual(x, x))
        assert forward_ad.unpack_dual(result["largest"]).tangent is None
        assert result["none"] is None
        tangent = forward_ad.unpack_dual(result["values"]).tangent
    torch.testing.assert_close(tangent.cpu(), 3 * X.cos() * X)


def test_several_arguments() -> None:
    def scaled(a: jax.Array, b: jax.Array, *, by: float) -> jax.Array:
        return a @ b * by

    x = X.jax()
    rows = torch.vmap(lambda a: jaxtorch.call_jax(scaled, a, x, by=2.0))(x)
    torch.testing.assert_close(rows.cpu(), 2 * X @ X)
    indices = torch.tensor([0, 2, 1], device="jax")
    picked = torch.vmap(lambda i, a: jaxtorch.call_jax(lambda i, a: a[i], i, a))(indices, x)
    torch.testing.assert_close(picked.cpu(), X[range(3), [0, 2, 1]])
    z, w = torch.complex(x, x + 1), torch.complex(X, X + 1)
    ours = grad(lambda z: jaxtorch.call_jax(lambda z: jnp.abs(z * z + z).sum(), z))(z)
    torch.testing.assert_close(ours.cpu(), grad(lambda z: (z * z + z).abs().sum())(w))


def test_a_custom_gradient() -> None:
    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 100,))
    gradient = torch.vmap(grad(lambda x: jaxtorch.call_jax(f, x).sum()))(X.jax())
    assert torch.equal(gradient.cpu(), torch.full_like(X, 100.0))


def test_a_repeated_call_compiles_nothing() -> None:
    x = X.jax()
    transforms = [torch.vmap(called), grad(squares(called)), torch.vmap(grad(squares(called)))]
    for f in transforms:
        f(x)
    count = jaxtorch.compile_count()
    for f in transforms:
        f(x)
    assert jaxtorch.compile_count() == count


FACTOR = 2.0


def test_a_value_that_the_function_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> Tensor:
        result: Tensor = torch.vmap(lambda x: jaxtorch.call_jax(times_factor, x))(x)
        return result

    assert torch.equal(f(X.jax()).cpu(), X * 2)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert torch.equal(f(X.jax()).cpu(), X * 3)


def times_factor(x: jax.Array) -> jax.Array:
    return x * FACTOR


def test_recording_operators_is_refused() -> None:
    """The program that `linearize` records would have the result as a constant."""
    with pytest.raises(RuntimeError, match=r"only torch operators.* the JAX function in_jax\."):
        torch.func.linearize(called, X.jax())


@pytest.mark.parametrize(
    "value",
    ["b", "12", b"a", object(), jnp.int32],
    ids=["str", "digits", "bytes", "object", "type"],
)
def test_a_result_that_is_no_array(value: object) -> None:
    def f(x: jax.Array) -> object:
        return x, value

    kind = type(value).__name__
    message = f"the JAX function f returns a value of type {kind}"
    with pytest.raises(TypeError, match=message) as raised:
        jaxtorch.call_jax(f, X.jax())
    error: BaseException | None = raised.value
    while (error := error and (error.__cause__ or error.__context__)) is not None:
        assert "not understood" not in str(error)  # JAX's own
