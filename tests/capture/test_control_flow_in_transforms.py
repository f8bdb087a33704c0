"""torch's control flow where something transforms the code: `torch.func`, and Dynamo.

The reference computes the same with `torch.where` on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.map import map as torch_map

import jaxtorch

Tensor = torch.Tensor
Function = Callable[..., Any]
ROWS = [[0.3, -0.2, 0.5], [-1.0, -2.0, 0.5], [1.0, 2.0, -3.5]]


def one(x: Tensor) -> Any:
    return {"value": x.sin() * 2}, x.sum()


def other(x: Tensor) -> Any:
    return {"value": x.cos() + x}, x.square().mean()


def chosen(x: Tensor) -> Tensor:
    result, number = torch.cond(x.sum() > 0, one, other, (x,))
    return result["value"] + number


def expected(x: Tensor) -> Tensor:
    (a, n), (b, m) = one(x), other(x)
    return torch.where(x.sum() > 0, a["value"] + n, b["value"] + m)


def nested(x: Tensor) -> Tensor:
    return torch.cond(x[0] > 0, chosen, lambda x: x * 3, (x,))


def expected_nested(x: Tensor) -> Tensor:
    return torch.where(x[0] > 0, expected(x), x * 3)


TRANSFORMS: dict[str, Callable[[Function, Tensor], Any]] = {
    "vmap": lambda f, x: torch.vmap(f)(x),
    "vmap over columns": lambda f, x: torch.vmap(f, in_dims=1, out_dims=1)(x),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x[0]),
    "vjp": lambda f, x: torch.func.vjp(f, x[0])[1](x[1]),
    "jvp": lambda f, x: torch.func.jvp(f, (x[0],), (x[1],)),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x[2]),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x[0]),
    "vmap of grad": lambda f, x: torch.vmap(torch.func.grad(lambda x: f(x).sum()))(x),
    "grad of vmap": lambda f, x: torch.func.grad(lambda x: torch.vmap(f)(x).sum())(x),
}
DOORS: dict[str, Callable[[Function], Function]] = {
    "eager": lambda f: f,
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("function", "reference"),
    [(chosen, expected), (nested, expected_nested)],
    ids=["one", "nested"],
)
def test_cond_under_transforms(
    transform: str, door: str, function: Function, reference: Function
) -> None:
    transformed = TRANSFORMS[transform]
    found = DOORS[door](lambda x: transformed(function, x))(torch.tensor(ROWS).to("jax"))
    theirs = transformed(reference, torch.tensor(ROWS))
    torch.testing.assert_close(torch.utils._pytree.tree_map(lambda t: t.cpu(), found), theirs)


def test_branches_of_other_structures_are_refused_in_a_batch() -> None:
    rows = torch.tensor(ROWS).to("jax")
    with pytest.raises(jaxtorch.CaptureError, match="different structures"):
        torch.vmap(lambda x: torch.cond(x.sum() > 0, lambda x: x, lambda x: (x, x), (x,)))(rows)


def test_numbers_that_differ_between_branches_are_refused_in_a_batch() -> None:
    rows = torch.tensor(ROWS).to("jax")
    with pytest.raises(jaxtorch.CaptureError, match=r"result 1 of .* is 2 in one branch"):
        torch.vmap(lambda x: torch.cond(x.sum() > 0, lambda x: (x, 2), lambda x: (x, 3), (x,))[0])(
            rows
        )


def _while(x: Tensor) -> Tensor:
    count = torch.zeros((), dtype=torch.int64, device=x.device)
    with torch.no_grad():
        return torch.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c * 2), (count, x))[1]


COMPILED: dict[str, tuple[Function, Function]] = {
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 3, (x,)), torch.sin),
    "the other branch of cond": (
        lambda x: torch.cond(x.sum() < 0, lambda x: x.sin(), lambda x: x * 3, (x,)),
        lambda x: x * 3,
    ),
    "cond in a batch": (
        lambda x: torch.vmap(lambda r: torch.cond(r > 0, torch.sin, torch.cos, (r,)))(x),
        lambda x: torch.where(x > 0, x.sin(), x.cos()),
    ),
    "while_loop": (_while, lambda x: x.detach() * 8),
    "map": (lambda x: torch_map(lambda r: r.sin() * 2, x.expand(3, 3)), lambda x: x.expand(3, 3).sin() * 2),
    "scan": (
        lambda x: scan(lambda c, r: (c + r, c * 1), x, x.expand(3, 3).clone())[1],
        lambda x: torch.stack([x, x * 2, x * 3]),
    ),
    "associative_scan": (
        lambda x: associative_scan(torch.add, x.expand(3, 3).clone(), 0, combine_mode="generic"),
        lambda x: torch.stack([x, x * 2, x * 3]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_operators_of_control_flow_are_compiled(
    name: str, differentiable: bool, fresh_dynamo: None
) -> None:
    function, reference = COMPILED[name]
    x = torch.tensor(ROWS[0]).to("jax").requires_grad_(differentiable)
    on_cpu = torch.tensor(ROWS[0], requires_grad=differentiable)
    found, theirs = torch.compile(function, backend="jax")(x), reference(on_cpu)
    torch.testing.assert_close(found.detach().cpu(), theirs.detach())
    assert found.requires_grad == theirs.requires_grad
    if theirs.requires_grad:
        found.sum().backward()
        theirs.sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), on_cpu.grad)
