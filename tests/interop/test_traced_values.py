"""`to_torch` of arrays that JAX traces: torch code works on them under every transform, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError
from jaxtorch.programs import tracing

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).to("jax")
X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    ones = torch.ones(3, device="jax")
    ones += 1
    assert ones.tolist() == [2.0, 2.0, 2.0]
    assert not tracing.active()
    assert tracing.depth == 0


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0].cos() * cotangents[0]


def in_place(t: torch.Tensor) -> torch.Tensor:
    y = t.clone()
    y[:, 0] += t[:, 1]
    y.mul_(t).clamp_(min=-0.5)
    return y.sum()


def inner_gradient(t: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad((t**3).sum(), t, create_graph=True)
    return (gradient * t).sum()


def constants(t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = t.exp().sum()
    return (t * scale + t.detach() * t).sum()


def hooked(t: torch.Tensor) -> torch.Tensor:
    y = t * 2
    y.register_hook(lambda g: g * 5)
    return y.sin().sum()


TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a module": lambda t: NET(t).sum(),
    "operators": lambda t: (t.softmax(-1) @ t.T).logsumexp(0).sum(),
    "views": lambda t: (t.T[1:].reshape(-1) * t[:, None, 1:].permute(2, 0, 1).flatten()).sum(),
    "in place": in_place,
    "a Function": lambda t: Tripled.apply(t).sum(),
    "a hook": hooked,
    "constants": constants,
    "torch.autograd.grad": inner_gradient,
    "scan": lambda t: jaxtorch.scan(lambda c, x: (c * x.sin(), None), 1.0, t[:, 0])[0],
    "pure": lambda t: jaxtorch.pure(lambda t: NET(t).sum())(t),
    "call_jax": lambda t: jaxtorch.call_jax(jnp.sin, t).sum(),
    "interpolate": lambda t: F.interpolate(
        t[None, None], (5, 4), mode="bicubic", antialias=True
    ).sum(),
}
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: jax.jit(f)(X),
    "grad": lambda f: jax.grad(f)(X),
    "jit of grad": lambda f: jax.jit(jax.value_and_grad(f))(X),
    "vmap": lambda f: jax.vmap(f)(jnp.stack([X, X + 1])),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f))(jnp.stack([X, X + 1])),
    "jacrev": lambda f: jax.jacrev(jax.checkpoint(f))(X),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c + f(x), c), 0.0, jnp.stack([X, X + 1])),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("function", TORCH.values(), ids=TORCH.keys())
def test_as_jax_view(transform: Any, function: Any) -> None:
    expected = transform(jaxtorch.jax_view(function))
    found = transform(lambda x: jaxtorch.to_jax(function(jaxtorch.to_torch(x))))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_trees_dtypes_and_further_jax_code() -> None:
    @jax.jit
    def f(x: jax.Array, n: jax.Array) -> Any:
        tensors = jaxtorch.to_torch({"x": x, "n": [n, None]}, device="jax")
        assert tensors["x"].requires_grad
        assert tensors["x"].device.type == "jax"
        assert tensors["n"][0].dtype is torch.int32
        back = jaxtorch.to_jax({"m": tensors["x"].argmax(1), "y": tensors["n"][0] + 1, "z": 1})
        other = jaxtorch.to_torch(jnp.sin(back["y"] * x[0, 0]))
        return back, jaxtorch.to_jax(other * tensors["x"]) + jaxtorch.to_jax(
            NET[0].weight.detach()
        ).sum()

    back, value = f(X, jnp.arange(3))
    assert back["m"].tolist() == [2, 2]
    assert back["m"].dtype == np.int32
    assert back["y"].tolist() == [1, 2, 3]
    expected = jnp.sin(jnp.arange(1, 4) * X[0, 0]) * X + NET[0].weight.detach().cpu().numpy().sum()
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_other_threads_and_later_functions_are_not_traced() -> None:
    counter = torch.zeros((), device="jax")
    jax.jit(lambda x: jaxtorch.to_jax(jaxtorch.to_torch(x) * 2))(X)

    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        counter.add_(1)  # runs as JAX traces, on values
        return x

    f(X)
    assert counter.item() == 1


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda t: t.sum().item(), Exception, "no value yet|jit"),
        (lambda t: t.cpu(), Exception, "no value yet"),
        (lambda t: F.dropout(t), CaptureError, "random numbers without a key.*rng=True"),
        (lambda t: NET[0].weight.data.add_(t[0]), CaptureError, "existed before.*copy"),
        (lambda t: t + torch.ones(3, device="cpu"), Exception, "device"),
    ],
)
def test_what_it_refuses(function: Any, error: type[Exception], words: str) -> None:
    before = NET[0].weight.detach().clone()
    with pytest.raises(error, match=words):
        jax.jit(lambda x: jaxtorch.to_jax(function(jaxtorch.to_torch(x))))(X)
    assert torch.equal(NET[0].weight, before)


def test_other_devices_and_keys_are_refused() -> None:
    with pytest.raises(TypeError, match=r"traced.*cpu.*torch2jax"):
        jax.jit(lambda x: jaxtorch.to_torch(x, device="cpu"))(X)
    with pytest.raises(TypeError, match="key_data"):
        jax.jit(lambda k: jaxtorch.to_torch(k))(jax.random.key(0))


USES_OF_A_LEAK: dict[str, Callable[[torch.Tensor], object]] = {
    "an operator with a number": lambda t: t + 1,
    "an operator with itself": lambda t: t * t,
    "a function": lambda t: t.sin(),
    "beside a value": lambda t: torch.add(torch.ones(3, device="jax"), t),
    "a view": lambda t: t[:2].exp(),
    "a write": lambda t: t.detach().add_(1),
    "a list": lambda t: torch.stack([t, t]),
    "print": repr,
    "copy": lambda t: t.cpu(),
    "item": lambda t: t.sum().item(),
    "an array": lambda t: jaxtorch.to_jax(t.detach()),
}


@pytest.mark.parametrize("use", USES_OF_A_LEAK.values(), ids=USES_OF_A_LEAK)
@pytest.mark.parametrize("kind", ["to_torch", "jax_view"])
def test_a_tensor_that_outlives_its_trace_says_so(
    kind: str, use: Callable[[torch.Tensor], object]
) -> None:
    leaked: list[torch.Tensor] = []

    def view(x: torch.Tensor) -> torch.Tensor:
        leaked.append(x * 2)
        return x

    def code(a: jax.Array) -> jax.Array:
        if kind == "jax_view":
            return jaxtorch.jax_view(view)(a)
        view(jaxtorch.to_torch(a))
        return a

    jax.jit(code)(jnp.ones(3))
    with pytest.raises(RuntimeError, match="that trace has ended"):
        use(leaked[0])
