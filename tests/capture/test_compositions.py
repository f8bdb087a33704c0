"""Ways to run a function, one inside another: each pair gives the value and the gradients of the function alone.

A way takes a function and returns one that computes the same: by capturing it, by passing it to JAX and back, inside a
transform of torch, in a loop of one iteration, or with a gradient of its own. Pairs of torch's own ways are compared
with the same pair on the CPU, which may be an error. `REFUSED` has the pairs that captured code refuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jaxtorch

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]
X = [0.3, -0.2, 0.5]
WEIGHT = [[1.0, 2.0, 0.5], [0.3, -1.0, 0.2], [0.1, 0.4, 1.5]]


def jax_scan(f: Function) -> Function:
    view = jaxtorch.jax_view(f)
    return jaxtorch.torch_view(
        lambda a: jax.lax.scan(lambda c, _: (view(c), None), a, None, length=1)[0]
    )


def jax_vmap(f: Function) -> Function:
    batched = jaxtorch.torch_view(jax.vmap(jaxtorch.jax_view(f)))
    return lambda x: batched(x[None])[0]


OURS: dict[str, Callable[[Function], Function]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
    "scan": lambda f: (
        lambda x: jaxtorch.scan(lambda c, _: (f(c), None), x, torch.zeros(1).to(x.device))[0]
    ),
    "jax_view": lambda f: jaxtorch.torch_view(jaxtorch.jax_view(f)),
    "jax.jit": lambda f: jaxtorch.torch_view(jax.jit(jaxtorch.jax_view(f))),
    "jax.checkpoint": lambda f: jaxtorch.torch_view(jax.checkpoint(jaxtorch.jax_view(f))),
    "jax.lax.scan": jax_scan,
    "jax.vmap": jax_vmap,
}
TO_JAX = {name for name in OURS if name.startswith("jax")}  # their closures are constants


def custom(f: Function) -> Function:
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return f(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = f(x)
            return torch.autograd.grad(y, x, g)[0]

    return Custom.apply


def by_a_gradient(f: Function) -> Function:
    def value(x: Tensor) -> Tensor:
        t = torch.ones_like(x, requires_grad=True)
        return torch.autograd.grad((f(x) * t).sum(), t, create_graph=True)[0]

    return value


def inside(context: Callable[[], Any]) -> Callable[[Function], Function]:
    def way(f: Function) -> Function:
        def run(x: Tensor) -> Tensor:
            with context():
                return f(x)

        return run

    return way


def module(f: Function) -> Function:
    class Wrapper(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return f(x)

    wrapper = Wrapper()
    wrapper.register_forward_hook(lambda module, args, result: result * 1)
    return wrapper


def saving_hooks() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


TORCHS: dict[str, Callable[[Function], Function]] = {
    "checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=False),
    "reentrant checkpoint": lambda f: lambda x: checkpoint(f, x, use_reentrant=True),
    "torch.vmap": lambda f: lambda x: torch.vmap(f)(x[None])[0],
    "torch.cond": lambda f: lambda x: torch.cond(x.sum() * 0 == 0, f, f, (x,)),
    "autograd.Function": custom,
    "inference_mode(False)": inside(lambda: torch.inference_mode(False)),
    "saved_tensors_hooks": inside(saving_hooks),
    "func.vjp": lambda f: lambda x: torch.func.vjp(f, x)[0],
    "func.jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.zeros_like(x),))[0],
    "func.grad": lambda f: (
        lambda x: torch.func.grad(lambda t: (f(x) * t).sum())(torch.ones_like(x))
    ),
    "module with a hook": module,
    "record_function": inside(lambda: torch.profiler.record_function("name")),
    "autograd.grad": by_a_gradient,
}
WAYS = OURS | TORCHS
CAPTURES = {*OURS} - {"compile"}
# What stands for a way on the CPU: there torch.cond is compiled by Dynamo, which refuses much of the rest.
ON_CPU = WAYS | {"torch.cond": lambda f: lambda x: f(x)}
# (the outer way, the inner way) -> what the error says.
REFUSED: dict[tuple[str, str], str] = {
    **{(outer, "saved_tensors_hooks"): "saved_tensors_hooks" for outer in CAPTURES - {"jit"}},
    ("jit", "saved_tensors_hooks"): "stores it outside",
    # What `jit` returns has no history.
    ("checkpoint", "jit"): "saved_tensors_hooks",
    ("saved_tensors_hooks", "jit"): "saved_tensors_hooks",
    ("reentrant checkpoint", "jit"): "requires_grad",
    ("autograd.Function", "jit"): "does not require grad",
}
PAIRS = list(itertools.product(WAYS, repeat=2))


def base(weight: Tensor) -> Function:
    return lambda x: torch.tanh(x @ weight) + x.sin()


def outcome(device: str, pair: tuple[str, ...]) -> list[Any]:
    """Value and gradients, twice; or the type of the error and its text."""
    x = torch.tensor(X).to(device).requires_grad_()
    weight = torch.tensor(WEIGHT).to(device).requires_grad_()
    function = base(weight)
    results: list[Any] = []
    try:
        for name in reversed(pair):
            function = (ON_CPU if device == "cpu" else WAYS)[name](function)
        for _ in range(2):
            x.grad = weight.grad = None
            y = function(x)
            if y.requires_grad:
                (y * torch.arange(1.0, 4.0).to(device)).sum().backward()
            results += [
                y.detach().cpu(),
                *(None if t.grad is None else t.grad.cpu() for t in (x, weight)),
            ]
    except Exception as error:
        return [type(error), str(error)]
    return results


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pair", PAIRS, ids=" of ".join)
def test_a_pair(pair: tuple[str, str], fresh_dynamo: None) -> None:
    found = outcome("jax", pair)
    if pair in REFUSED:
        assert isinstance(found[0], type), "this pair is not refused any more"
        assert REFUSED[pair] in found[1]
        return
    expected = outcome("cpu", pair if set(pair) <= {*TORCHS} else ())
    if isinstance(expected[0], type):
        assert found[0] is expected[0]
        return
    assert not isinstance(found[0], type), found
    for i, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        lost = (i % 3 and "jit" in pair) or (
            i % 3 == 2 and set(pair) & (TO_JAX | {"autograd.Function"})
        )
        if mine is None and lost:
            continue
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
