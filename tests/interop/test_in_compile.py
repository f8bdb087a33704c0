"""JAX functions called in code under `torch.compile`: one graph, values and gradients as eagerly."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from torch._higher_order_ops import scan as torch_scan

import jaxtorch

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
Tensor = torch.Tensor
Code = Callable[[Tensor], Tensor]
BACKENDS = pytest.mark.parametrize("backend", ["eager", "jax"])


def silu(x: jax.Array) -> jax.Array:
    return x / (1 + jnp.exp(-x))


@jax.custom_vjp
def tenfold(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


tenfold.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (10 * g * jnp.cos(x),))


@jax.custom_vjp
def kernel(x: jax.Array) -> jax.Array:
    def double(x_ref, o_ref):  # type: ignore[no-untyped-def]
        o_ref[...] = 2 * x_ref[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(double, out_shape=shape, interpret=True)(x)


kernel.defvjp(lambda x: (kernel(x), None), lambda _, g: (kernel(g),))


class Scaled:
    """An object with a method, as a module of flax has."""

    def __init__(self, scale: float):
        self.scale = scale

    def apply(self, x: jax.Array, power: int = 1) -> dict[str, object]:
        return {"y": (x * self.scale) ** power, "more": [jnp.argmax(x), None]}


scaled = Scaled(3.0)
view = jaxtorch.torch_view(silu)
view_of_jaxs = jaxtorch.torch_view(jnp.tanh)
mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("data", None))
pure = jaxtorch.pure(lambda x: x.sin() * 2)
pure_of_jaxs = jaxtorch.pure(lambda x: jaxtorch.call_jax(silu, x) * 2)

weight = torch.full((4,), 0.5, device="jax")
torch_in_jax = jaxtorch.jax_view(lambda x: torch.tanh(x * weight) + x.softmax(-1))
remat = jax.checkpoint(torch_in_jax)


@jaxtorch.jax_view
def gradient_in_jax(x: Tensor) -> Tensor:
    return torch.autograd.grad((x.sin() * weight).square().sum(), x, create_graph=True)[0]


def of_function(x: Tensor) -> Tensor:
    return jaxtorch.call_jax(silu, x * 2) + 1


def of_lambda(x: Tensor) -> Tensor:
    return jaxtorch.call_jax(lambda a, n: jnp.sin(a) * n, x * 2, 3)


def of_jaxs(x: Tensor) -> Tensor:
    return jaxtorch.call_jax(jnp.arctan2, x * 2, x.cos())


def of_method(x: Tensor) -> Tensor:
    result = jaxtorch.call_jax(scaled.apply, x * 2, power=2)
    return result["y"] + result["more"][0]


def of_custom_vjp(x: Tensor) -> Tensor:
    return jaxtorch.call_jax(tenfold, x * 2) * 3


def of_pallas(x: Tensor) -> Tensor:
    return jaxtorch.call_jax(kernel, x.sin()).exp()


def of_view(x: Tensor) -> Tensor:
    return view(x * 2) * view_of_jaxs(x)


def of_sharding(x: Tensor) -> Tensor:
    return jaxtorch.with_sharding_constraint(x.sin(), rows) * 2


def of_pytrees(x: Tensor) -> Tensor:
    a, b = jaxtorch.call_jax(lambda t, *, w: (t["x"] * w[0], t["x"].sum()), {"x": x}, w=[x, "name"])
    return a * b


def of_pure(x: Tensor) -> Tensor:
    return pure(x * 2) + pure_of_jaxs(x)


def of_torch_in_jax(x: Tensor) -> Tensor:
    return jaxtorch.call_jax(torch_in_jax, x * 2) + jaxtorch.call_jax(remat, x)


def of_torch_in_jax_with_gradients(x: Tensor) -> Tensor:
    return jaxtorch.call_jax(gradient_in_jax, x * 2)


def of_several(x: Tensor) -> Tensor:
    for function in (silu, tenfold, jnp.tanh):
        x = jaxtorch.call_jax(function, x)
    return x.clone().mul_(2)


def of_torchs_scan(x: Tensor) -> Tensor:
    last, ys = torch_scan(lambda c, e: (jaxtorch.call_jax(tenfold, c + e), c * 2), x[0], x)
    return last + ys


CODES = [code for name, code in list(globals().items()) if name.startswith("of_")]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 4, device="jax", requires_grad=True)


def value_and_gradient(code: Code, x: Tensor) -> tuple[Tensor, Tensor]:
    y = code(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    return y.detach(), gradient


@BACKENDS
@pytest.mark.parametrize("code", CODES)
def test_one_graph_with_the_gradient_of_eager_code(code: Code, backend: str, x: Tensor) -> None:
    compiled = torch.compile(code, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(code, x))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), code(x))


@BACKENDS
@pytest.mark.parametrize("code", CODES)
def test_gradients_of_jax_through_compiled_code(code: Code, backend: str, x: Tensor) -> None:
    compiled = torch.compile(code, backend=backend, fullgraph=True)
    compiled(x)
    array = jaxtorch.to_jax(x.detach())
    gradient = jax.grad(jaxtorch.jax_view(lambda x: compiled(x).square().sum()))(array)
    expected = value_and_gradient(code, x)[1]
    np.testing.assert_allclose(gradient, jaxtorch.to_jax(expected), rtol=1e-5, atol=1e-5)


def scaled_by(scale: float) -> Callable[[jax.Array], jax.Array]:
    return lambda x: x * scale


factor = 2.0


def by_factor(x: jax.Array) -> jax.Array:
    return x * factor


@BACKENDS
def test_the_function_and_what_it_reads_are_not_stale(
    backend: str, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = torch.compile(lambda x, f: jaxtorch.call_jax(f, x), backend=backend, fullgraph=True)
    for scale in (2.0, 3.0):  # the same code, another closure
        assert torch.equal(given(x, scaled_by(scale)), x * scale)
    reads = torch.compile(
        lambda x: jaxtorch.call_jax(by_factor, x), backend=backend, fullgraph=True
    )
    for new in (2.0, 3.0):
        monkeypatch.setitem(globals(), "factor", new)
        assert torch.equal(reads(x), x * new)


@BACKENDS
def test_numbers_and_sizes_that_change(backend: str) -> None:
    f = torch.compile(
        lambda x, n: jaxtorch.call_jax(jnp.multiply, x, n), backend=backend, fullgraph=True
    )
    for size, number in ((2, 2), (3, 3), (4, 4), (4, 2.5), (4, 3.5)):
        x = torch.randn(size, 3, device="jax")
        assert torch.equal(f(x, number), x * number)


@BACKENDS
def test_what_no_graph_can_have_is_said_and_runs_between_graphs(backend: str, x: Tensor) -> None:
    def code(x: Tensor) -> Tensor:
        y = x.sin()
        return jaxtorch.call_jax(lambda a: a * (2 if y is None else 3), x) + y

    with pytest.raises(Exception, match="pass each tensor as an argument"):
        torch.compile(code, backend=backend, fullgraph=True)(x)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(code, backend=backend)(x), code(x))


@BACKENDS
def test_a_tensor_elsewhere_is_refused(backend: str) -> None:
    f = torch.compile(lambda x: jaxtorch.call_jax(jnp.sin, x), backend=backend, fullgraph=True)
    with pytest.raises(Exception, match=r"\.jax\(\)"):
        f(torch.ones(3))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_backend_that_records_operators_of_torch_says_so(backend: str, grad: bool) -> None:
    """It would record none for the call, and give tensors that nothing has filled."""
    x = torch.ones(3, device="jax", requires_grad=grad)
    f = torch.compile(lambda x: jaxtorch.call_jax(silu, x).sum(), backend=backend)
    called = r"the JAX function silu. Use backend='jax'"
    message = called if backend == "aot_eager" else r'use torch\.compile\(f, backend="jax"\)'
    with pytest.raises(RuntimeError, match=message):
        f(x)


def test_one_program_with_the_code_around_it(x: Tensor) -> None:
    f = torch.compile(of_pallas, backend="jax", fullgraph=True)
    with torch.no_grad():
        before = jaxtorch.compile_count()
        f(x)
        assert jaxtorch.compile_count() - before == 1


@BACKENDS
def test_loops_of_this_package_around_a_call(backend: str, x: Tensor) -> None:
    def code(x: Tensor) -> Tensor:
        last, ys = jaxtorch.scan(lambda c, e: (jaxtorch.call_jax(tenfold, c + e), c * 2), x[0], x)
        return last + ys

    compiled = torch.compile(code, backend=backend, fullgraph=True)
    torch.testing.assert_close(value_and_gradient(compiled, x), value_and_gradient(code, x))


def test_a_step_of_training(x: Tensor) -> None:
    """`torch.compile` of the model inside `jit`, and of the loss alone in an eager loop."""
    losses = []
    for captured in (False, True):
        weight = torch.nn.Parameter(x.detach().clone())
        optimizer = torch.optim.SGD([weight], lr=0.01)
        loss_of = torch.compile(
            lambda w: of_custom_vjp(w).square().mean(), backend="jax", fullgraph=True
        )

        def step(weight=weight, optimizer=optimizer, loss_of=loss_of) -> Tensor:  # type: ignore[no-untyped-def]
            optimizer.zero_grad()
            loss = loss_of(weight)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = jaxtorch.jit(step) if captured else step
        losses.append(torch.stack([run() for _ in range(3)]))
    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0][0] != losses[0][2]
