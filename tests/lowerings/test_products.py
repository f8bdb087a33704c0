"""`linear`, `matmul`, `einsum`, `tensordot`: as on the CPU with gradients of two orders, and one contraction each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import func, nn

import jaxtorch

Tensor = torch.Tensor
Size = tuple[int, ...]
Case = tuple[str, Callable[..., Tensor], tuple[Size, ...]]


def _linears() -> list[Case]:
    inputs: list[Size] = [(3,), (2, 3), (4, 2, 3), (5, 4, 2, 3), (0, 3), (2, 0, 3)]
    biases: list[Size | None] = [None, (6,), (1,), (2, 6), (2, 1), (), (4, 2, 6)]
    cases: list[Case] = []
    for x, w, b in itertools.product(inputs, [(3,), (6, 3)], biases):
        sizes: tuple[Size, ...] = (x, w) if b is None else (x, w, b)
        cases.append((f"linear {sizes}", F.linear, sizes))
    return cases


def _matmuls() -> list[Case]:
    lefts = [(3,), (2, 3), (4, 2, 3), (5, 4, 2, 3), (5, 1, 2, 3), (2, 0, 3)]
    rights = [(3,), (3, 2), (4, 3, 2), (1, 3, 2), (5, 4, 3, 2), (3, 0), (4, 2)]
    pairs = itertools.product(lefts, rights)
    return [(f"matmul {a} {b}", torch.matmul, (a, b)) for a, b in pairs]


def _einsums() -> list[Case]:
    table: list[tuple[str, tuple[Size, ...]]] = [
        ("ij,ij->ij", ((2, 3), (1, 3))),
        ("Ab,bA", ((2, 3), (3, 2))),
        ("...i,...i", ((4, 2, 3), (2, 3))),
        ("ii,i->i", ((3, 3), (3,))),
        ("ij , k", ((2, 3), (2,))),
        ("i...,j...->...", ((2, 4), (3, 4))),
        ("ij,jk,kl", ((2, 3), (3, 4), (4, 5))),
        ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("ij->ji", ((2, 3),)),
        ("ij,jk->ikl", ((2, 3), (3, 4))),
        ("ij,jk", ((2, 3), (4, 4))),
        ("i,i,i", ((3,), (3,), (3,))),
    ]
    return [(f"einsum {eq}", lambda *ts, eq=eq: torch.einsum(eq, *ts), s) for eq, s in table]


def _tensordots() -> list[Case]:
    table: list[tuple[tuple[Size, Size], Any]] = [
        (((2, 3, 4), (4, 3, 5)), ([1, 2], [1, 0])),
        (((2, 3), (3, 2)), 1),
        (((2, 3), (3, 4)), 0),
        (((2, 1), (3, 4)), ([1], [0])),
        (((2, 3), (3, 4)), ([-1], [-2])),
        (((2, 3), (3, 4)), ([5], [0])),
        (((2, 3), (4, 2)), 1),
    ]
    cases: list[Case] = [
        (f"tensordot {sizes} {dims}", lambda a, b, dims=dims: torch.tensordot(a, b, dims), sizes)
        for sizes, dims in table
    ]
    return [*cases, ("inner", torch.inner, ((2, 3), (4, 3)))]


CASES = [*_linears(), *_matmuls(), *_einsums(), *_tensordots()]


def _two_orders(
    function: Callable[..., Tensor], tensors: list[Tensor], device: str
) -> list[Tensor | None]:
    """The result, its gradients, and gradients of these."""
    leaves = [t.to(device).requires_grad_() for t in tensors]
    y = function(*leaves)
    first = torch.autograd.grad(y, leaves, torch.full_like(y, 0.7), create_graph=True)
    total = torch.stack([(g * g.conj()).real.sum() for g in first]).sum()
    second = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else ()
    return [y.detach().cpu(), *(g.detach().cpu() for g in first), *(g and g.cpu() for g in second)]


def _or_zero(t: Tensor | None, like: Tensor | None) -> Tensor:
    if t is not None:
        return t
    assert like is not None
    return torch.zeros_like(like)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize(("name", "function", "sizes"), CASES, ids=[c[0] for c in CASES])
def test_as_on_the_cpu(
    name: str, function: Callable[..., Tensor], sizes: tuple[Size, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(s, dtype=dtype) for s in sizes]
    try:
        expected = _two_orders(function, tensors, "cpu")
    except (RuntimeError, IndexError) as error:
        with pytest.raises(type(error)):
            _two_orders(function, tensors, "jax")
        return
    got = _two_orders(function, tensors, "jax")
    for ours, theirs in zip(got, expected, strict=True):
        if ours is not None or theirs is not None:
            torch.testing.assert_close(
                _or_zero(ours, theirs), _or_zero(theirs, ours), rtol=1e-4, atol=1e-4
            )


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32]


@pytest.mark.parametrize("mixed", [*itertools.product(DTYPES, DTYPES)], ids=str)
def test_dtypes_as_on_the_cpu(mixed: tuple[torch.dtype, torch.dtype]) -> None:
    for function in (F.linear, torch.matmul, torch.inner):
        a, b = torch.ones(2, 3, 4, dtype=mixed[0]), torch.ones(4, 4, dtype=mixed[1])
        try:
            expected = function(a, b)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                function(a.to("jax"), b.to("jax"))
            continue
        result = function(a.to("jax"), b.to("jax"))
        assert result.dtype == expected.dtype
        assert torch.equal(result.cpu(), expected)


def test_a_half_result_is_rounded_once() -> None:
    """The product and the bias are added in float32, as in `addmm`."""
    torch.manual_seed(0)
    x, w, b = (torch.randn(s).bfloat16() for s in ((2, 3, 64), (8, 64), (8,)))
    exact = (x.double() @ w.double().T + b.double()).float()
    result = F.linear(x.to("jax"), w.to("jax"), b.to("jax")).cpu()
    torch.testing.assert_close(result, exact.bfloat16(), rtol=0.005, atol=0)


Transformed = Callable[[nn.Module, dict[str, Tensor], Tensor], Any]


def _loss(module: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    return lambda p, x: func.functional_call(module, p, (x,)).sin().sum()


def _jacobian(module: nn.Module, p: dict[str, Tensor], x: Tensor, **options: Any) -> Any:
    function = torch.autograd.functional.jacobian
    return function(lambda x: func.functional_call(module, p, (x,)), x, vectorize=True, **options)


TRANSFORMED: dict[str, Transformed] = {
    "vmap of grad": lambda m, p, x: func.vmap(func.grad(_loss(m)), (None, 0))(p, x),
    "grad of vmap": lambda m, p, x: func.grad(lambda p: func.vmap(_loss(m), (None, 0))(p, x).sum())(
        p
    ),
    "jvp": lambda m, p, x: func.jvp(lambda x: func.functional_call(m, p, (x,)), (x,), (x.cos(),)),
    "jacfwd": lambda m, p, x: func.jacfwd(lambda x: func.functional_call(m, p, (x,)))(x),
    "hessian": lambda m, p, x: func.hessian(lambda x: _loss(m)(p, x))(x),
    "batched backward": _jacobian,
    "batched forward": lambda m, p, x: _jacobian(m, p, x, strategy="forward-mode"),
}


class _Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return torch.einsum("...i,ij->...j", h @ self.layer.weight, self.layer.weight.T)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms(name: str) -> None:
    torch.manual_seed(0)
    module, x = _Products(), torch.randn(5, 2, 3)
    parameters = {n: p.detach() for n, p in module.named_parameters()}
    expected = TRANSFORMED[name](module, parameters, x)
    result = TRANSFORMED[name](module, {n: p.to("jax") for n, p in parameters.items()}, x.to("jax"))
    for ours, theirs in zip(_leaves(result), _leaves(expected), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def _leaves(tree: Any) -> list[Tensor]:
    return list(torch.utils._pytree.tree_leaves(tree))


CONTRACTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Size, ...]]] = {
    "linear": (F.linear, ((2, 3, 4), (5, 4))),
    "linear of 4": (F.linear, ((2, 3, 6, 4), (5, 4))),
    "matmul": (torch.matmul, ((2, 3, 4, 5), (2, 3, 5, 6))),
    "q @ k.mT": (lambda q, k: q @ k.mT, ((2, 3, 4, 5), (2, 3, 6, 5))),
    "by a matrix": (torch.matmul, ((2, 3, 4), (4, 6))),
    "a matrix by": (torch.matmul, ((4, 4), (2, 3, 4, 6))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 6))),
    "baddbmm": (torch.baddbmm, ((2, 3, 6), (2, 3, 4), (2, 4, 6))),
    "einsum": (lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b), ((2, 3, 4, 5), (2, 3, 6, 5))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), ((2, 3, 4), (3, 4, 6))),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_one_contraction_over_all_dimensions(name: str) -> None:
    function, sizes = CONTRACTIONS[name]
    view = jaxtorch.jax_view(function)
    arrays = [jax.numpy.ones(s) for s in sizes]

    def by_jax(*arrays: jax.Array) -> Any:
        y, pullback = jax.vjp(view, *arrays)
        return pullback(y)

    def by_torch(*tensors: Tensor) -> Any:
        leaves = [t.detach().requires_grad_() for t in tensors]
        y = function(*leaves)
        return torch.autograd.grad(y, leaves, torch.ones_like(y))

    # The gradients of both factors; the result itself is the cotangent of `by_jax`.
    for program, count in ((view, 1), (by_jax, 3), (jaxtorch.jax_view(by_torch), 2)):
        text = jax.jit(program).lower(*arrays).as_text()
        assert text.count("stablehlo.dot_general") == count
        assert "stablehlo.reshape" not in text
