"""Torch functions as JAX functions, under JAX's transforms, against the same function written in JAX."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.test_util import check_grads

import jaxtorch
from jaxtorch import jax_view
from jaxtorch.capture.errors import CaptureError

X = jnp.linspace(-1.0, 2.0, 6).reshape(2, 3)


def torch_energy(x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x) * x.T.contiguous().T).sum() + x.softmax(-1).square().sum()


def jax_energy(x: jax.Array) -> jax.Array:
    return (jnp.tanh(x) * x).sum() + jnp.square(jax.nn.softmax(x, -1)).sum()


TRANSFORMS = {
    "call": lambda f: f(X),
    "jit": lambda f: jax.jit(f)(X),
    "grad": lambda f: jax.grad(f)(X),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(X),
    "vjp": lambda f: jax.vjp(jax.jit(f), X)[1](jnp.float32(2.0)),
    "jvp": lambda f: jax.jvp(jax.jit(f), (X,), (X + 1,)),
    "linearize": lambda f: jax.linearize(jax.jit(f), X)[1](X + 1),
    "hessian": lambda f: jax.hessian(jax.jit(f))(X),
    "vmap": lambda f: jax.vmap(f)(jnp.stack([X, X * 2, -X])),
    "vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f), in_axes=1))(jnp.stack([X, -X], axis=1)),
    "checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(f)))(X),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c + f(x), c), 0.0, jnp.stack([X, -X])),
    "jacrev of jacrev": lambda f: jax.jit(jax.jacrev(jax.jacrev(f)))(X),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_every_transform_gives_what_jax_gives(transform: str) -> None:
    ours = TRANSFORMS[transform](jax_view(torch_energy))
    theirs = TRANSFORMS[transform](jax_energy)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), ours, theirs)


def test_gradients_of_both_modes_and_second_order_by_finite_differences() -> None:
    torch.manual_seed(0)
    convolution = torch.nn.Conv1d(2, 3, 2).to("jax")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(convolution(x[None]))[0]
        return F.layer_norm(y, (y.shape[-1],)).cumsum(0).logsumexp(-1)

    check_grads(jax.jit(jax_view(f)), (X,), order=2, rtol=2e-2, atol=2e-2)


def test_pytrees_keywords_numbers_and_what_is_no_array() -> None:
    @jax_view
    def f(batch: dict[str, Any], mode: str, *, scale: Any, none: None = None) -> Any:
        assert mode == "mode"
        assert none is None
        return {"a": [batch["x"] * scale, batch["i"] + 1], "mode": len(mode), "none": None}

    batch = {"x": np.float32([1, 2]), "i": jnp.arange(3)}
    for scale in (3, jnp.float32(3)):
        out = f(batch, "mode", scale=scale)
        assert out["mode"] == 4
        assert out["none"] is None
        assert isinstance(out["a"][0], jax.Array)
        assert out["a"][0].tolist() == [3, 6]
        assert out["a"][1].tolist() == [1, 2, 3]
    assert jax.jit(f, static_argnums=1)(batch, "mode", scale=2)["a"][0].tolist() == [2, 4]


def test_parameters_are_constants_or_arguments() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 2).to("jax")
    expected = linear(torch.tensor(np.asarray(X), device="jax"))
    for f in (jax_view(linear), jax.jit(jax_view(linear))):
        np.testing.assert_allclose(f(X), np.asarray(expected.detach().cpu()), rtol=1e-6)

    def loss(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        call = jax_view(lambda p, x: torch.func.functional_call(linear, p, (x,)))
        return jnp.square(call(parameters, x)).sum()

    parameters = {"weight": jnp.ones((2, 3)), "bias": jnp.zeros(2)}
    ours = jax.jit(jax.grad(loss))(parameters, X)
    theirs = jax.grad(lambda p: jnp.square(X @ p["weight"].T + p["bias"]).sum())(parameters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, theirs)
    assert all(p.grad is None for p in linear.parameters())
    linear(torch.ones(3, device="jax")).sum().item()  # the parameters hold values


def test_detach_and_no_grad_stop_the_derivatives() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.sum()
        return (x * x.detach() * scale).sum()

    def twin(x: jax.Array) -> jax.Array:
        return (x * jax.lax.stop_gradient(x) * jax.lax.stop_gradient(x.sum())).sum()

    for derivative in (jax.grad, jax.hessian):
        np.testing.assert_allclose(derivative(jax_view(f))(X), derivative(twin)(X))
    with torch.no_grad():  # around the call it says nothing: derivatives are asked for by JAX
        np.testing.assert_allclose(
            jax.grad(jax_view(torch_energy))(X), jax.grad(jax_energy)(X), rtol=1e-5
        )


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, t: torch.func.grad(lambda t: f(t).sum())(t),
        lambda f, t: torch.func.vjp(f, t)[1](t)[0],
        lambda f, t: torch.func.jvp(f, (t,), (t,))[1],
        lambda f, t: torch.vmap(f)(t),
    ],
    ids=["grad", "vjp", "jvp", "vmap"],
)
def test_a_call_that_a_transform_of_torch_does_not_concern(transform: Any) -> None:
    """Its operands are none of the transform's tensors."""
    x, t = torch.tensor(X.tolist()), torch.tensor([1.0, 2.0])
    view = jax_view(torch_energy)
    expected = transform(lambda t: torch_energy(x) * t.sin(), t)
    x = x.to("jax")
    found = transform(lambda t: jaxtorch.call_jax(view, x) * t.sin(), t.to("jax"))
    torch.testing.assert_close(found.cpu(), expected)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g / 2


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint])
def test_forward_mode_meets_a_gradient_of_the_users_as_in_jax(transform: Any) -> None:
    """A `custom_vjp` has no tangent: JAX says so, whichever transform asks."""
    view, x = transform(jax_view(Halved.apply)), torch.ones(3, device="jax")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(view, (jnp.ones(3),), (jnp.ones(3),))
    with pytest.raises(TypeError, match="forward-mode"):
        torch.func.jvp(lambda x: jaxtorch.call_jax(view, x), (x,), (x,))
    (gradient,) = torch.func.vjp(lambda x: jaxtorch.call_jax(view, x), x)[1](x)
    assert gradient.tolist() == [0.5, 0.5, 0.5]


def test_torchs_own_gradients_inside() -> None:
    @jax_view
    def force(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(torch_energy(x), x, create_graph=True)
        return gradient

    for f in (force, jax.jit(force)):
        np.testing.assert_allclose(f(X), jax.grad(jax_energy)(X), rtol=1e-5)
    np.testing.assert_allclose(
        jax.jacrev(force)(X), jax.hessian(jax_energy)(X), rtol=1e-4, atol=1e-5
    )

    for captured in (jaxtorch.pure, jaxtorch.jit):
        inside = captured(lambda x: jaxtorch.call_jax(force, x))
        np.testing.assert_allclose(inside(torch.tensor(X.tolist()).to("jax")), force(X), rtol=1e-5)

    @jax_view
    def by_backward(x: torch.Tensor) -> torch.Tensor | None:
        torch_energy(x).backward()
        return x.grad

    np.testing.assert_allclose(jax.jit(by_backward)(X), jax.grad(jax_energy)(X), rtol=1e-5)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["call", "jit"])
def test_the_body_of_a_scan_reads_what_the_code_around_it_has(transform: Any) -> None:
    """Without a transform of JAX the arrays are no tracers, and neither is what the body closes over."""
    weight, rows = torch.ones(3, device="jax", requires_grad=True), torch.ones(4, 3, device="jax")

    def summed(x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.scan(
            lambda c, row: (c + (x * row * weight).sin().sum(), None), x.sum() * 0, rows
        )[0]

    @jax_view
    def gradients(x: torch.Tensor) -> object:
        return torch.autograd.grad(summed(x), [x, weight])

    @jax_view
    def changed(x: torch.Tensor) -> object:
        y = x.clone()
        before = summed(y)
        y.add_(1)
        return before, summed(y)

    x = X[0]

    def f(x: Any, w: Any) -> Any:
        return 4 * jnp.sin(x * w).sum()

    expected = jax.grad(f, (0, 1))(x, jnp.ones(3))
    for found, one in zip(transform(gradients)(x), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-5)
    np.testing.assert_allclose(transform(changed)(x), [f(x, 1), f(x + 1, 1)], rtol=1e-5)


def test_a_functions_own_backward_holds() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 100

    gradient = jax.jit(jax.grad(jax_view(lambda x: Doubled.apply(x).sum())))(X)
    assert jnp.array_equal(gradient, jnp.full_like(X, 100))


def test_writes_in_place_stay_inside() -> None:
    @jax_view
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0] = 5
        y = torch.zeros(2, 3)
        y += x
        return F.relu(y, inplace=True) ** 2

    def twin(x: jax.Array) -> jax.Array:
        return jax.nn.relu((x + 1).at[0].set(5)) ** 2

    stack = jnp.stack([X, -X])
    before = np.array(stack)
    for transform in (lambda f: lambda x: f(x[0]), lambda f: jax.jit(jax.vmap(f))):
        np.testing.assert_allclose(transform(f)(stack), transform(twin)(stack), rtol=1e-6)
    assert np.array_equal(stack, before)
    np.testing.assert_allclose(jax.jacrev(f)(X), jax.jacrev(twin)(X))


def test_wide_dtypes_are_what_jax_has_them() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.argmax(), x.double().sin(), x.long() * 2

    def narrow(x: jax.Array) -> Any:
        return x.argmax(), jnp.sin(x), x.astype(jnp.int32) * 2

    for transform in (lambda f: f, jax.jit):
        for a, b in zip(transform(jax_view(f))(X), transform(narrow)(X), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)
    with jax.enable_x64(True):
        assert jax.jit(jax_view(f))(X)[1].dtype == np.float64
        assert jax_view(f)(X)[0].dtype == np.int64
    gradient = jax.jit(jax.grad(jax_view(lambda x: (x.double() * torch.arange(3)).sum())))(X)
    assert gradient.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_random_numbers_come_from_the_key() -> None:
    dropout = torch.nn.Dropout(0.5)
    drop = jax_view(dropout, rng=True)
    ones = jnp.ones(64)
    first = drop(jax.random.key(7), ones)
    assert jnp.array_equal(first, jax.jit(drop)(jax.random.key(7), ones))
    assert jnp.array_equal(first, drop(jax.random.PRNGKey(7), ones))
    assert not jnp.array_equal(first, drop(jax.random.key(8), ones))
    torch.manual_seed(7)
    assert first.tolist() == dropout(torch.ones(64, device="jax")).tolist()
    state = torch.jax.get_rng_state()
    masks = jax.vmap(drop, in_axes=(0, None))(jax.random.split(jax.random.key(0), 3), ones)
    assert len({tuple(mask.tolist()) for mask in masks}) == 3
    assert set(drop(jax.random.key(0, impl="rbg"), ones).tolist()) == {0.0, 2.0}
    assert torch.equal(state, torch.jax.get_rng_state())
    twice = jax_view(lambda: (torch.rand(4), torch.rand(4)), rng=True)
    assert not jnp.array_equal(*twice(jax.random.key(0)))


def refused(function: Any, match: str) -> None:
    for transform in (lambda f: f, jax.jit):
        with pytest.raises(CaptureError, match=match):
            transform(jax_view(function))(X)


def test_effects_are_refused_and_undone() -> None:
    torch.manual_seed(0)
    refused(torch.nn.Dropout(), "rng=True")
    norm = torch.nn.BatchNorm1d(3).to("jax")
    refused(norm, "eval")
    assert norm.running_mean.tolist() == [0, 0, 0]
    assert norm.num_batches_tracked.item() == 0
    counter = torch.zeros(3, device="jax")
    line = sys._getframe().f_lineno + 1
    refused(lambda x: counter.add_(x[0]), rf"existed before .*test_jax_view.*, line {line}")
    assert counter.tolist() == [0, 0, 0]
    assert not counter.requires_grad
    linear = torch.nn.Linear(3, 1).to("jax")
    refused(lambda x: linear(x).sum().backward(), "gradient")
    assert linear.weight.grad is None
    state = torch.jax.get_rng_state()
    with pytest.raises(CaptureError, match="rng"):
        jax_view(lambda x: torch.rand(3) + x)(X)
    assert torch.equal(state, torch.jax.get_rng_state())


def test_errors_teach() -> None:
    with pytest.raises(CaptureError, match=r"torch\.where"):
        jax.jit(jax_view(lambda x: x if x.sum() > 0 else -x))(X)
    assert jax_view(lambda x: x if x.sum() > 0 else -x)(X).tolist() == X.tolist()
    with pytest.raises(TypeError, match="not int"):
        jax_view(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pytree"):
        jax_view(lambda x: {x})(X)
    with pytest.raises(TypeError, match="on cpu"):
        jax_view(lambda x: torch.ones(3, device="cpu"))(X)
    with pytest.raises(TypeError, match="rng=True"):
        jax_view(lambda k: k)(jax.random.key(0))
    with pytest.raises(TypeError, match="key"):
        jax_view(lambda x: x, rng=True)(3.0, X)


def test_inside_torch_code_again() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 2).to("jax")
    inner = jax_view(lambda x: linear(x).sin().sum())
    x = torch.ones(4, 3, device="jax", requires_grad=True)
    (expected,) = torch.autograd.grad(linear(x).sin().sum(), x)
    for call in (jaxtorch.torch_view(inner), jaxtorch.pure(lambda x: jaxtorch.call_jax(inner, x))):
        (gradient,) = torch.autograd.grad(call(x), x)
        torch.testing.assert_close(gradient, expected)

    @jaxtorch.pure
    def whole(x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.call_jax(inner, x)

    before = whole(x)
    with torch.no_grad():
        linear.weight.zero_()
    torch.testing.assert_close(whole(x), linear(x).sin().sum())  # an input of the outer program
    assert not torch.equal(before, whole(x))


def test_shard_map() -> None:
    program = """
        import jax, jax.numpy as jnp, numpy as np, torch
        from jax.sharding import Mesh, PartitionSpec as P
        from jaxtorch import jax_view

        weight = torch.arange(12.0, device="jax").reshape(3, 4) / 10
        mesh = Mesh(np.array(jax.devices()), ("i",))
        view = jax_view(lambda x: (x @ weight).softmax(-1) * torch.arange(4))
        sharded = jax.shard_map(view, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        w = jnp.arange(12.0).reshape(3, 4) / 10
        twin = lambda x: jax.nn.softmax(x @ w) * jnp.arange(4)
        x = jnp.linspace(-1, 1, 24).reshape(8, 3)
        np.testing.assert_allclose(sharded(x), twin(x), rtol=1e-5)
        both = [jax.jit(jax.value_and_grad(lambda x: (f(x) ** 2).sum()))(x) for f in (sharded, twin)]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *both)
        assert len(jax.jit(sharded)(x).sharding.device_set) == 4
    """
    four = {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **four},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
