"""`jaxtorch.scan` compared with the equivalent Python loop: values, gradients, random numbers, and errors."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Step = Callable[[Any, Any], tuple[Any, Any]]


class State(NamedTuple):
    """A carry whose parts have names."""

    hidden: torch.Tensor
    cell: torch.Tensor

    def plus(self, x: torch.Tensor) -> State:
        return self._replace(hidden=self.hidden + x)


class Box:
    """An object that holds a tensor of the body."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def twice(self) -> torch.Tensor:
        return self.value * 2


def loop(function: Step, init: Any, xs: Any) -> tuple[Any, Any]:
    """The Python loop that a scan replaces."""
    carry, ys = init, []
    for x in xs:
        carry, y = function(carry, x)
        ys.append(y)
    return carry, torch.stack(ys)


def run(
    scan: Any, step: Step, init: torch.Tensor, xs: torch.Tensor, parameters: Any = ()
) -> list[Any]:
    """Results and gradients of a loss of everything a scan returns."""
    torch.manual_seed(7)
    inputs = [init.clone().requires_grad_(), xs.clone().requires_grad_()]
    carry, ys = scan(step, *inputs)
    loss = carry.sin().sum() + (ys * ys).sum()
    return [carry, ys, *torch.autograd.grad(loss, [*inputs, *parameters])]


def run_jit(step: Step, init: torch.Tensor, xs: torch.Tensor, parameters: Any = ()) -> list[Any]:
    """The same inside `jit`, where torch's autograd runs in the trace."""
    compiled = jaxtorch.jit(lambda init, xs: run(jaxtorch.scan, step, init, xs, parameters))
    torch.manual_seed(7)
    return compiled(init, xs)


def check(step: Step, init: torch.Tensor, xs: torch.Tensor, parameters: Any = ()) -> None:
    expected = run(loop, step, init, xs, parameters)
    inside = jaxtorch.pure(lambda init, xs: jaxtorch.scan(step, init, xs))
    ways = [
        run(jaxtorch.scan, step, init, xs, parameters),
        run(lambda _, init, xs: inside(init, xs), step, init, xs, parameters),
        run_jit(step, init, xs, parameters),
    ]
    for way in ways:
        torch.testing.assert_close(way, expected)


def data(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, device="jax")


def cell() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(3, 3).to("jax")


def test_values_and_gradients_are_the_loops() -> None:
    linear = cell()

    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(linear(h) + x)
        return h, h * 2

    check(step, data(2, 3), data(5, 2, 3), [*linear.parameters()])


def test_a_function_may_write_to_what_it_made_and_was_given() -> None:
    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = h.mul(0.5)
        h[:, 0] += x[:, 1]
        return h, h.cumsum(0)

    def carried(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h *= 0.5
        h[0] += x[0]
        return h, h.exp()

    check(step, data(2, 3), data(4, 2, 3))
    with torch.no_grad():
        torch.testing.assert_close(
            jaxtorch.scan(carried, data(2, 3), data(4, 2, 3)),
            loop(carried, data(2, 3), data(4, 2, 3)),
        )


def test_dropout_draws_what_the_loop_draws() -> None:
    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.dropout(h + x, 0.5)
        return h, torch.rand_like(h) * h

    init, xs = data(4, 8), data(6, 4, 8)
    torch.manual_seed(3)
    expected = loop(step, init, xs)
    after = torch.jax.get_rng_state()
    for scan in (
        functools.partial(jaxtorch.scan, step),
        jaxtorch.pure(lambda a, b: jaxtorch.scan(step, a, b)),
        jaxtorch.jit(lambda a, b: jaxtorch.scan(step, a, b)),
    ):
        torch.manual_seed(3)
        torch.testing.assert_close(scan(init, xs), expected)
        assert torch.equal(torch.jax.get_rng_state(), after)
        assert not torch.equal(scan(init, xs)[1], expected[1])


def test_backward_in_jit_uses_the_masks_of_forward() -> None:
    x = torch.ones(64, device="jax", requires_grad=True)

    @jaxtorch.jit
    def step() -> tuple[torch.Tensor, torch.Tensor]:
        _, ys = jaxtorch.scan(
            lambda c, _: (c, F.dropout(x, 0.5)), torch.zeros((), device="jax"), length=3
        )
        (gradient,) = torch.autograd.grad(ys.sum(), x)
        return ys.detach(), gradient

    ys, gradient = step()
    torch.testing.assert_close(gradient, ys.sum(0))
    assert not torch.equal(ys[0], ys[1])


def test_the_closures_tensors_get_gradients_leaf_view_or_computed() -> None:
    w = data(3, 3).requires_grad_()

    def f(scan: Any, x: torch.Tensor) -> torch.Tensor:
        computed = w.exp() * 0.1
        row = w[0]
        transposed = w.T

        def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = (h @ computed + row) @ transposed + w.detach().sum()
            return h, h + x

        return scan(step, torch.ones(3, device="jax"), x)[1].sum()

    x = data(4, 3)
    (expected,) = torch.autograd.grad(f(loop, x), w)
    for way in (f, jaxtorch.pure(f)):
        (ours,) = torch.autograd.grad(way(jaxtorch.scan, x), w)
        torch.testing.assert_close(ours, expected)
    count = jaxtorch.compile_count()
    torch.autograd.grad(f(jaxtorch.scan, x), w)
    assert jaxtorch.compile_count() == count
    step = jaxtorch.jit(lambda x: torch.autograd.grad(f(jaxtorch.scan, x), w)[0])
    torch.testing.assert_close(step(x), expected)


def test_a_parameter_in_channels_last() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 2, 3, padding=1).to("jax", memory_format=torch.channels_last)

    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = convolution(h) + x
        return h, h

    def gradient(scan: Any) -> Any:
        _, ys = scan(step, torch.ones(1, 2, 4, 4, device="jax"), data(3, 1, 2, 4, 4))
        return torch.autograd.grad(ys.sum(), [*convolution.parameters()])

    step_in_jit = jaxtorch.jit(lambda: gradient(jaxtorch.scan))
    torch.testing.assert_close(step_in_jit(), gradient(loop))


def test_no_gradient_where_torch_has_none() -> None:
    w = data(3).requires_grad_()

    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            scale = w.sum()
        return h * scale + x * w.detach(), h.round().long()

    carry, ys = jaxtorch.scan(step, torch.zeros(3, device="jax"), data(4, 3))
    assert not ys.requires_grad
    x = data(4, 3).requires_grad_()
    carry, _ = jaxtorch.scan(step, torch.zeros(3, device="jax"), x)
    (ours,) = torch.autograd.grad(carry.sum(), x)
    (expected,) = torch.autograd.grad(loop(step, torch.zeros(3, device="jax"), x)[0].sum(), x)
    torch.testing.assert_close(ours, expected)
    assert not jaxtorch.scan(step, torch.zeros(3, device="jax"), x.detach())[0].requires_grad


def test_second_derivatives() -> None:
    def f(init: torch.Tensor, xs: torch.Tensor) -> Any:
        return jaxtorch.scan(lambda c, x: ((c * x).sin(), c * c), init, xs)

    init = data(2).double().requires_grad_()
    xs = data(3, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(f, (init, xs))
    assert torch.autograd.gradgradcheck(f, (init, xs))


def test_pytrees_numbers_none_length_and_reverse() -> None:
    xs = {"a": data(4, 2), "b": None, "c": [torch.arange(4, device="jax")]}

    def step(carry: Any, x: Any) -> Any:
        assert x["b"] is None
        total, count = carry
        return (total + x["a"].sum(), count + x["c"][0]), {"y": x["a"] * count, "n": None}

    (total, count), ys = jaxtorch.scan(step, (0.0, 0), xs)
    torch.testing.assert_close(total, xs["a"].sum())
    assert count.item() == 6
    assert count.dtype == torch.int64
    torch.testing.assert_close(ys["y"], xs["a"] * torch.tensor([0, 0, 1, 3], device="jax")[:, None])
    assert ys["n"] is None
    last, powers = jaxtorch.scan(lambda c, _: (c * 2, c), torch.ones((), device="jax"), length=5)
    assert last.item() == 32
    assert powers.tolist() == [1, 2, 4, 8, 16]
    ones = torch.ones((), device="jax")
    for numbers in (jaxtorch.scan, jaxtorch.pure(jaxtorch.scan)):
        _, stacked = numbers(lambda c, _: (c, (3, 0.5, True)), ones, length=3)
        expected = jax.lax.scan(lambda c, _: (c, (3, 0.5, True)), 1.0, length=3)[1]
        assert [s.tolist() for s in stacked] == [s.tolist() for s in expected]
    x = data(5)
    _, sums = jaxtorch.scan(lambda c, x: (c + x, c + x), 0.0, x, reverse=True)
    torch.testing.assert_close(sums, x.flip(0).cumsum(0).flip(0))


def test_one_loop_in_the_program_and_one_run_of_the_python() -> None:
    linear, runs = cell(), 0

    def step(h: torch.Tensor, x: torch.Tensor) -> Any:
        nonlocal runs
        runs += 1
        return linear(h) + x, None

    def f(x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.scan(step, torch.zeros(3, device="jax"), x)[0]

    jaxpr = jax.make_jaxpr(jaxtorch.jax_view(f))(jnp.ones((100, 3), jnp.float32))
    primitives = [str(e.primitive) for e in jaxpr.eqns]
    assert primitives.count("scan") == 1
    assert "dot_general" not in primitives
    assert runs == 1
    jaxtorch.pure(f)(data(100, 3)).sum().backward()
    assert runs == 2


def test_a_step_in_jit_has_one_loop_forward_and_one_backward() -> None:
    w = data(3, 3).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        _, ys = jaxtorch.scan(lambda h, x: ((h @ w + x).tanh(), h), torch.ones(3, device="jax"), x)
        return torch.autograd.grad(ys.sum(), w)[0]

    step = jaxtorch.jit(f)
    step(data(4, 3))
    ((traced,),) = step._programs.values()
    primitives = [str(e.primitive) for e in traced.captured.jaxpr.eqns]
    assert primitives.count("scan") == 2


class Tripled(torch.autograd.Function):
    """A sine whose gradient is three times too large, so that any other is found out."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0].cos() * cotangents[0]


def test_a_functions_own_backward_holds_inside() -> None:
    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = Tripled.apply(h) + x
        return h, h * 2

    check(step, data(3), data(4, 3))


def test_eager_calls_compile_once_also_for_a_function_made_anew() -> None:
    linear = cell()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear
            self.scale = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = self.scale

            def step(h: torch.Tensor, x: torch.Tensor) -> Any:
                return self.linear(h) * scale + x, None

            return jaxtorch.scan(step, torch.zeros(3, device="jax"), x)[0]

    model, x = Model(), data(4, 3)
    with torch.no_grad():
        first = model(x)
        count = jaxtorch.compile_count()
        second = model(x)
        assert jaxtorch.compile_count() == count
        torch.testing.assert_close(second, first)
        model.scale = 3.0
        expected = loop(lambda h, x: (linear(h) * 3.0 + x, h), torch.zeros(3, device="jax"), x)[0]
        torch.testing.assert_close(model(x), expected)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_scan_in_scan_and_in_a_checkpoint() -> None:
    linear = cell()

    def inner(c: torch.Tensor, x: torch.Tensor) -> Any:
        c = torch.tanh(linear(c) + x)
        return c, c

    def step(h: torch.Tensor, x: torch.Tensor) -> Any:
        h, ys = jaxtorch.scan(inner, h, x)
        return h, ys.sum(0)

    def plain(h: torch.Tensor, x: torch.Tensor) -> Any:
        h, ys = loop(inner, h, x)
        return h, ys.sum(0)

    init, xs, own = data(3), data(4, 2, 3), [*linear.parameters()]
    expected = run(loop, plain, init, xs, own)
    torch.testing.assert_close(run(jaxtorch.scan, step, init, xs, own), expected)
    torch.testing.assert_close(run_jit(step, init, xs, own), expected)


def test_a_pallas_kernel_with_a_gradient_of_its_own_and_a_sharding_constraint() -> None:
    @jax.custom_vjp
    def double(x: Any) -> Any:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * 2

        return pl.pallas_call(
            kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True
        )(x)

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g * 5,))
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("d"))

    def step(h: torch.Tensor, x: torch.Tensor) -> Any:
        h = jaxtorch.call_jax(double, h) + x
        return jaxtorch.with_sharding_constraint(h, sharding), h

    def f(x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.scan(step, torch.zeros(3, device="jax"), x)[0]

    x = data(3, 3).requires_grad_()
    y = jaxtorch.pure(f)(x)
    torch.testing.assert_close(y, x[0] * 4 + x[1] * 2 + x[2])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient[:, 0].tolist() == [25.0, 5.0, 1.0]
    text = jax.jit(jaxtorch.jax_view(f)).lower(jnp.ones((3, 3), jnp.float32)).as_text()
    assert "sdy.sharding_constraint" in text or "@Sharding" in text
    jaxpr = jax.make_jaxpr(jaxtorch.jax_view(f))(jnp.ones((3, 3), jnp.float32))
    (scan,) = [e for e in jaxpr.eqns if str(e.primitive) == "scan"]
    inside = str(scan.params["jaxpr"])
    assert "pallas_call" in inside
    assert "sharding_constraint" in inside


def test_torch_func_sees_the_loop() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.scan(lambda c, x: (c * x.sin(), c), 1.0, x)[0]

    x = data(4)
    expected = torch.func.grad(lambda x: x.sin().prod())(x)
    torch.testing.assert_close(torch.func.grad(f)(x), expected)
    torch.testing.assert_close(jaxtorch.pure(torch.func.grad(f))(x), expected)


def _kept(h: torch.Tensor, x: torch.Tensor) -> Any:
    kept.append(h * 2)
    return h, x


kept: list[torch.Tensor] = []
statistics = nn.BatchNorm1d(3).to("jax")


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (lambda h, x: (h.double(), x), TypeError, "must keep shape and dtype.*float32.*float64"),
        (lambda h, x: ((h, h), x), TypeError, "must keep its structure"),
        (lambda h, x: h, TypeError, "must return a pair"),
        (lambda h, x: (statistics(h), x), CaptureError, "writes to a tensor.*scan_layers"),
        (_kept, CaptureError, "stores a tensor outside"),
        (lambda h, x: (h if h.sum() > 0 else -h, x), CaptureError, "torch.cond"),
    ],
)
def test_what_it_refuses(step: Any, error: type[Exception], words: str) -> None:
    before = [b.clone() for b in statistics.buffers()]
    for scan in (jaxtorch.scan, jaxtorch.pure(lambda a, b, c: jaxtorch.scan(a, b, c))):
        with pytest.raises(error, match=words):
            scan(step, data(2, 3), data(4, 2, 3))
    kept.clear()
    torch.testing.assert_close([*statistics.buffers()], before)


@pytest.mark.parametrize("step", [None, 1000, data])
def test_a_body_that_is_no_function(step: Any) -> None:
    step = step(3) if step is data else step
    for scan in (jaxtorch.scan, jaxtorch.pure(lambda *args: jaxtorch.scan(*args))):
        with pytest.raises(TypeError, match=r"function \(carry, x\) .* not (NoneType|int|Tensor)"):
            scan(step, data(3), data(4, 3))


def test_lengths() -> None:
    with pytest.raises(ValueError, match="differ"):
        jaxtorch.scan(lambda c, x: (c, x), 0.0, [data(3), data(4)])
    with pytest.raises(ValueError, match="pass xs, or length"):
        jaxtorch.scan(lambda c, x: (c, x), 0.0)


def _boxed(carry: State, x: torch.Tensor) -> tuple[State, torch.Tensor]:
    box = Box(carry.hidden + x)
    call = box.twice
    return State(call().tanh(), box.value), Box(x).twice()


NAMED: dict[str, Step] = {
    "made again": lambda c, x: (State(c.hidden.tanh() + x, c.cell), c.cell),
    "replaced": lambda c, x: (c._replace(cell=c.cell * x), c.hidden),
    "returned as it is": lambda c, x: (c, x),
    "by a method": lambda c, x: (c.plus(x), c.hidden),
    "unpacked": lambda c, x: (State(*(part + x for part in c)), x),
    "as the result": lambda c, x: (c, State(x, c.cell)),
    "objects with methods": _boxed,
}


@pytest.mark.parametrize("name", NAMED)
def test_named_tuples_and_objects_of_the_body(name: str) -> None:
    step = NAMED[name]
    torch.manual_seed(0)
    xs, start = torch.randn(3, 4, device="jax"), torch.randn(2, 4, device="jax")
    captured = jaxtorch.jit(lambda init, xs: jaxtorch.scan(step, init, xs))
    expected = carry = State(*start)
    for x in xs:
        expected, _ = step(expected, x)
    for last, ys in (jaxtorch.scan(step, carry, xs), captured(carry, xs)):
        assert type(last) is State
        assert isinstance(ys, State) is (name == "as the result")
        torch.testing.assert_close(torch.stack(last), torch.stack(expected))
