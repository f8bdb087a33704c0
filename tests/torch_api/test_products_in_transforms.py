"""`linear` and `matmul` under the transforms of `torch.func` and in forward mode, against the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.functional import linear

Tensor = torch.Tensor
Product = Callable[..., Tensor]
Operands = tuple[Tensor, ...]

SHAPES: dict[str, tuple[Product, tuple[tuple[int, ...], ...]]] = {
    "linear of a vector": (linear, ((3,), (5, 3))),
    "linear": (linear, ((2, 4, 3), (5, 3))),
    "linear with a bias": (linear, ((2, 1, 4, 3), (5, 3), (5,))),
    "linear of no rows": (linear, ((0, 3), (5, 3), (5,))),
    "vector @ vector": (torch.matmul, ((3,), (3,))),
    "vector @ matrices": (torch.matmul, ((3,), (2, 3, 5))),
    "matrix @ vector": (torch.matmul, ((4, 3), (3,))),
    "matrix @ matrix": (torch.matmul, ((4, 3), (3, 5))),
    "matrix @ matrices": (torch.matmul, ((4, 3), (2, 3, 5))),
    "matrices @ vector": (torch.matmul, ((2, 4, 3), (3,))),
    "matrices @ matrix": (torch.matmul, ((2, 4, 3), (3, 5))),
    "matrices @ matrices": (torch.matmul, ((2, 1, 4, 3), (6, 3, 5))),
}


def all_of(operands: Operands) -> tuple[int, ...]:
    return tuple(range(len(operands)))


def gradients(f: Product, operands: Operands) -> Callable[..., Operands]:
    """A function that returns the gradients of all operands."""
    return grad(lambda *t: f(*t).sin().sum(), all_of(operands))


def of_gradients(f: Product, operands: Operands) -> Callable[..., Tensor]:
    return lambda *t: torch.stack([g.square().sum() for g in gradients(f, operands)(*t)]).sum()


def twice(operands: Operands) -> list[Tensor]:
    return [torch.stack([t, 2 * t]) for t in operands]


def in_forward_mode(f: Product, operands: Operands) -> Operands:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t.clone().requires_grad_(), t) for t in operands]
        primal, tangent = forward_ad.unpack_dual(f(*duals).sin())
        return primal.detach(), tangent.detach()


def by_autograd(f: Product, operands: Operands) -> Sequence[Tensor]:
    leaves = [t.clone().requires_grad_() for t in operands]
    return torch.autograd.grad(of_gradients(f, operands)(*leaves), leaves)


TRANSFORMS: dict[str, Callable[[Product, Operands], object]] = {
    "grad": lambda f, ts: gradients(f, ts)(*ts),
    "vjp": lambda f, ts: vjp(f, *ts)[1](f(*ts)),
    "jvp": lambda f, ts: jvp(lambda *t: f(*t).sin(), ts, ts),
    "jvp of the first": lambda f, ts: jvp(lambda t: f(t, *ts[1:]), ts[:1], ts[:1]),
    "jvp of the last": lambda f, ts: jvp(lambda t: f(*ts[:-1], t), ts[-1:], ts[-1:]),
    "jacrev": lambda f, ts: jacrev(f, all_of(ts))(*ts),
    "jacfwd": lambda f, ts: jacfwd(f, all_of(ts))(*ts),
    "hessian": lambda f, ts: hessian(lambda t: f(t, *ts[1:]).sin().sum())(ts[0]),
    "grad of grad": lambda f, ts: grad(of_gradients(f, ts), all_of(ts))(*ts),
    "jvp of grad": lambda f, ts: jvp(gradients(f, ts), ts, ts),
    "grad of jvp": lambda f, ts: grad(
        lambda *t: jvp(lambda *u: f(*u).sin(), t, ts)[1].sum(), all_of(ts)
    )(*ts),
    "jvp of grad of another": lambda f, ts: jvp(
        lambda a: grad(lambda b: f(a, b, *ts[2:]).sin().sum())(ts[1]), ts[:1], ts[:1]
    ),
    "vmap of grad": lambda f, ts: vmap(gradients(f, ts))(*twice(ts)),
    "vmap of grad, one batched": lambda f, ts: vmap(
        gradients(f, ts), in_dims=(0, *[None] * (len(ts) - 1))
    )(twice(ts)[0], *ts[1:]),
    "vmap of jvp": lambda f, ts: vmap(lambda *t: jvp(f, t, t)[1])(*twice(ts)),
    "grad of vmap": lambda f, ts: gradients(lambda *t: vmap(f)(*twice(t)), ts)(*ts),
    "autograd of grad": by_autograd,
    "forward mode": in_forward_mode,
}


@pytest.mark.filterwarnings("error:There is a performance drop")  # of a batch, one by one
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_as_on_the_cpu(transform: str) -> None:
    run = TRANSFORMS[transform]
    for name, (product, shapes) in SHAPES.items():
        torch.manual_seed(0)
        operands = tuple(torch.randn(shape) for shape in shapes)
        expected = run(product, operands)
        result = run(product, tuple(t.jax() for t in operands))
        for ours, theirs in zip(
            torch.utils._pytree.tree_leaves(result),
            torch.utils._pytree.tree_leaves(expected),
            strict=True,
        ):
            assert ours.is_jax
            torch.testing.assert_close(
                ours.cpu(), theirs, rtol=2e-4, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}"
            )


# A graph of Dynamo opens these transforms itself.
IN_GRAPHS = ("grad", "vjp", "jvp", "jvp of the first", "jvp of the last", "vmap of jvp")


@pytest.mark.parametrize("transform", IN_GRAPHS)
@pytest.mark.parametrize("name", ["linear with a bias", "matrices @ matrix", "vector @ matrices"])
def test_in_a_graph_of_dynamo(name: str, transform: str, fresh_dynamo: None) -> None:
    product, shapes = SHAPES[name]
    operands = tuple(torch.randn(shape) for shape in shapes)
    compiled = torch.compile(lambda *t: TRANSFORMS[transform](product, t), backend="jax")
    results = compiled(*(t.jax() for t in operands)), TRANSFORMS[transform](product, operands)
    for ours, theirs in zip(*map(torch.utils._pytree.tree_leaves, results), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-4, atol=2e-4)
