"""torch's control-flow operators and checkpointing, compared with the equivalent Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import associative_scan, while_loop
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan as torch_scan
from torch.utils.checkpoint import checkpoint

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Function = Callable[[torch.Tensor], torch.Tensor]


def data(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, device="jax")


@pytest.fixture
def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(3, 3).to("jax")


def gradients(function: Function, x: torch.Tensor, parameters: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    y = function(x)
    found = torch.autograd.grad(
        y.sin().sum(), [x, *parameters], allow_unused=True, materialize_grads=True
    )
    return [y.detach(), *found]


def check(ours: Function, theirs: Function, x: torch.Tensor, parameters: Any = ()) -> None:
    """Values and gradients, eagerly, in `pure` and in `jit`, from one seed."""

    def seeded(call: Callable[[], Any]) -> Any:
        torch.manual_seed(5)
        return call()

    expected = seeded(lambda: gradients(theirs, x, parameters))
    pure = jaxtorch.pure(ours)
    jit = jaxtorch.jit(lambda x: gradients(ours, x, parameters))
    torch.testing.assert_close(seeded(lambda: gradients(ours, x, parameters)), expected)
    torch.testing.assert_close(seeded(lambda: gradients(pure, x, parameters)), expected)
    torch.testing.assert_close(seeded(lambda: jit(x)), expected)


def primitives(function: Function, *shape: int) -> list[str]:
    """The names of the primitives in the program of a function."""
    view = jaxtorch.jax_view(function, rng=True)
    jaxpr = jax.make_jaxpr(view)(jax.random.key(0), jnp.ones(shape, jnp.float32))
    return [str(e.primitive) for e in jaxpr.eqns]


# -- cond -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign: int, linear: nn.Module) -> None:
    def ours(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: linear(x).sin(), lambda x: x * 2, (x,))

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return linear(x).sin() if x.sum() > 0 else x * 2

    check(ours, theirs, data(2, 3).abs() * sign, [*linear.parameters()])
    assert primitives(ours, 2, 3).count("cond") == 1


def test_cond_runs_one_branch_of_one_program(linear: nn.Module) -> None:
    pure = jaxtorch.pure(
        lambda x: torch.cond(
            x.sum() > 0, lambda x: {"a": [linear(x)]}, lambda x: {"a": [x * 2]}, (x,)
        )
    )
    x = data(2, 3).abs()
    torch.testing.assert_close(pure(x)["a"][0], linear(x))
    torch.testing.assert_close(pure(-x)["a"][0], -2 * x)
    assert pure.cache_info().misses == 1


def test_cond_draws_as_its_branch_does() -> None:
    def ours(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5), lambda x: x * 1, (x,))
        return y * torch.rand_like(y)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.5) if x.sum() > 0 else x * 1
        return y * torch.rand_like(y)

    for x in (data(16).abs(), -data(16).abs()):
        check(ours, theirs, x)


def test_cond_on_a_python_value_and_in_a_scan() -> None:
    assert torch.cond(True, lambda x: x + 1, lambda x: x, (data(1) * 0,)).item() == 1

    def step(h: torch.Tensor, x: torch.Tensor) -> Any:
        h = torch.cond(h.sum() > 0, lambda h, x: h * x, lambda h, x: h + x.abs(), (h, x))
        return h, h

    def plain(x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(2, device="jax")
        for element in x:
            h = h * element if h.sum() > 0 else h + element.abs()
        return h

    check(lambda x: jaxtorch.scan(step, torch.zeros(2, device="jax"), x)[0], plain, data(5, 2))


state = torch.zeros(3, device="jax")


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (lambda x: x, lambda x: x.double(), "float32.* in one branch and torch.float64"),
        (lambda x: x, lambda x: x[:1], r"\[3\] in one branch and torch.float32\[1\]"),
        (lambda x: x, lambda x: (x, x), "different structures"),
        (lambda x: state.add_(x), lambda x: x, "a branch of torch.cond writes to a tensor"),
    ],
)
def test_cond_refuses(one: Any, other: Any, words: str) -> None:
    pure = jaxtorch.pure(lambda x: torch.cond(x.sum() > 0, one, other, (x,)))
    with pytest.raises(CaptureError, match=words):
        pure(data(3))
    assert not state.any()


# -- while_loop -------------------------------------------------------------------------------------------------------


def test_while_loop() -> None:
    def ours(x: torch.Tensor) -> Any:
        return while_loop(
            lambda i, x: x.abs().sum() < 100,
            lambda i, x: (i + 1, F.dropout(x, 0.1) * 1.5 + i),
            (0, x),
        )

    def theirs(x: torch.Tensor) -> Any:
        i = 0
        while x.abs().sum() < 100:
            i, x = i + 1, F.dropout(x, 0.1) * 1.5 + i
        return i, x

    x = data(2, 3)
    for way in (ours, jaxtorch.pure(ours), jaxtorch.jit(ours)):
        torch.manual_seed(2)
        count, result = way(x)
        torch.manual_seed(2)
        expected = theirs(x)
        assert int(count) == expected[0]
        torch.testing.assert_close(result, expected[1])
    assert primitives(ours, 2, 3).count("while") == 1


def test_while_loop_has_a_gradient_eagerly_and_says_why_not_captured() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda x: x.sum() < 10, lambda x: (x * 2,), (x,))[0]

    x = torch.ones(2, device="jax", requires_grad=True)
    (gradient,) = torch.autograd.grad(f(x).sum(), x)
    assert gradient.tolist() == [8, 8]
    with pytest.raises(CaptureError, match=r"gradient .* while_loop.*jaxtorch\.scan"):
        jaxtorch.pure(f)(x)
    with torch.no_grad():
        assert jaxtorch.pure(f)(x).tolist() == [8, 8]


# -- scan, map, associative_scan --------------------------------------------------------------------------------------


def test_torchs_scan(linear: nn.Module) -> None:
    def ours(x: torch.Tensor) -> torch.Tensor:
        h, ys = torch_scan(
            lambda h, x: (linear(h) + x, (h * x).clone()),
            torch.ones(3, device="jax"),
            x,
            dim=1,
            reverse=True,
        )
        return ys + h[:, None]

    def theirs(x: torch.Tensor) -> torch.Tensor:
        h, ys = torch.ones(3, device="jax"), []
        for element in reversed(x.unbind(1)):
            h, y = linear(h) + element, h * element
            ys.append(y)
        return torch.stack(ys[::-1], 1) + h[:, None]

    check(ours, theirs, data(3, 4), [*linear.parameters()])
    assert primitives(ours, 3, 4).count("scan") == 1


def test_torchs_map(linear: nn.Module) -> None:
    shift = data(3)

    def ours(x: torch.Tensor) -> torch.Tensor:
        return torch_map(lambda x, shift: F.dropout(linear(x), 0.5) + shift, x, shift)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([F.dropout(linear(row), 0.5) + shift for row in x])

    check(ours, theirs, data(4, 3), [*linear.parameters()])
    assert primitives(ours, 4, 3).count("scan") == 1


def test_eager_calls_compile_once() -> None:
    x, shift = data(4, 3), data(3)

    def call() -> torch.Tensor:
        return torch_map(lambda x, shift: x.sin() + shift, x, shift)

    call()
    count = jaxtorch.compile_count()
    call()
    assert jaxtorch.compile_count() == count


def test_associative_scan(linear: nn.Module) -> None:
    def generic(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(torch.mul, x, 0, combine_mode="generic")

    check(generic, lambda x: x.cumprod(0), data(5, 2))
    # torch keeps the pointwise form to CUDA by its own check: the operator itself is what torch.compile calls.
    operator = torch.ops.higher_order.associative_scan

    def direct(x: torch.Tensor) -> torch.Tensor:
        scale = linear.weight.sum()
        return operator(lambda a, b: [a * b * scale], [x], ())[0]

    def plain(x: torch.Tensor) -> torch.Tensor:
        found = [x[0]]
        for row in x[1:]:
            found.append(found[-1] * row * linear.weight.sum())
        return torch.stack(found)

    check(direct, plain, data(5, 2), [linear.weight])


# -- checkpoint -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool, linear: nn.Module) -> None:
    def block(x: torch.Tensor, scale: float, *, shift: torch.Tensor) -> torch.Tensor:
        return F.dropout(linear(x).sin(), 0.5) * scale + shift

    def ours(x: torch.Tensor) -> torch.Tensor:
        # torch's reentrant one takes no keywords.
        return checkpoint(lambda x: block(x, 2.0, shift=x), x, use_reentrant=reentrant)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return block(x, 2.0, shift=x)

    inside = jaxtorch.pure(ours)
    in_jit = jaxtorch.jit(lambda x: gradients(ours, x, [*linear.parameters()]))
    x = data(4, 3)
    torch.manual_seed(5)
    expected = gradients(theirs, x, [*linear.parameters()])
    torch.manual_seed(5)
    torch.testing.assert_close(gradients(inside, x, [*linear.parameters()]), expected)
    torch.manual_seed(5)
    torch.testing.assert_close(in_jit(x), expected)
    assert any("remat" in p or "checkpoint" in p for p in primitives(ours, 4, 3))


def test_checkpoint_keeps_less_for_the_backward_pass() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x.sin().exp()
        return x

    def residuals(function: Function) -> int:
        _, pullback = jax.vjp(jaxtorch.jax_view(function), jnp.ones((64,), jnp.float32))
        return len(jax.tree.leaves(pullback))

    kept = residuals(lambda x: checkpoint(block, x, use_reentrant=False))
    assert kept < residuals(block)


def test_between_two_programs_a_checkpoint_keeps_what_it_was_given() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x.sin().exp()
        return x

    def saved(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = checkpoint(block, x, use_reentrant=False)
        return x.sum()

    def plain(x: torch.Tensor) -> torch.Tensor:
        return block(block(block(x))).sum()

    x = data(64, 64).requires_grad_()
    gradients, held = [], []
    for function in (plain, saved):
        pure = jaxtorch.pure(function)
        gradients += torch.autograd.grad(pure(x), x)
        before = torch.jax.memory_allocated()
        loss = pure(x)
        held.append((torch.jax.memory_allocated() - before) // x.nbytes)
        del loss
    torch.testing.assert_close(gradients[1], gradients[0])
    assert held[0] > 12
    assert held[1] == 2  # what the second and the third block were given; the first was given `x`


def test_checkpoint_of_a_module_updates_its_statistics_once() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3).to("jax")
    twin = nn.BatchNorm1d(3).to("jax")
    x = data(8, 3)
    torch.testing.assert_close(
        jaxtorch.pure(lambda x: checkpoint(norm, x, use_reentrant=False))(x), twin(x)
    )
    torch.testing.assert_close([*norm.buffers()], [*twin.buffers()])


def test_torchs_own_outside_of_captured_code(linear: nn.Module) -> None:
    x = data(2, 3).cpu().requires_grad_()
    w = linear.weight.detach().cpu()
    y = checkpoint(lambda x: (x @ w).sin(), x, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad((x @ w).sin().sum(), x)
    torch.testing.assert_close(gradient, expected)
    assert torch.cond(x.sum() < 1e9, lambda x: x + 1, lambda x: x * 2, (x,)).device.type == "cpu"
