"""Gradients of captured code flow through what one operator computes by others, and not through what is detached."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jaxtorch

Function = Callable[[torch.Tensor], torch.Tensor]


def _squared(x: torch.Tensor) -> torch.Tensor:
    return (x.abs().square() * (torch.arange(x.numel(), device=x.device).view(x.shape) + 1)).sum()


# Operators that autograd sees as one and that run others, of views, casts or copies of their argument.
INNER: dict[str, Function] = {
    "pinv": lambda x: torch.linalg.pinv(x),
    "dist": lambda x: torch.dist(x, x.T * 2),
    "diag": lambda x: torch.diag(x),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[0] * 2),
    "to": lambda x: x.to(torch.float64, memory_format=torch.preserve_format).T,
    "combinations": lambda x: torch.combinations(x[0]),
    "hfft": lambda x: torch.fft.hfft(x),
    "conj": lambda x: x.to(torch.complex64).conj() + 1,
    "real of conj": lambda x: x.to(torch.complex64).conj().real.sin(),
}
# Operators that copy a view: torch computes them by the view and `clone`.
COPIES: dict[str, tuple[object, ...]] = {
    "_neg_view_copy": (),
    "_reshape_alias_copy": ((25,), (1,)),
    "alias_copy": (),
    "as_strided_copy": ((3, 2), (6, 2), 1),
    "diagonal_copy": (1,),
    "expand_copy": ((2, 5, 5),),
    "permute_copy": ((1, 0),),
    "select_copy": (1, 2),
    "slice_copy": (1, 0, 5, 2),
    "squeeze_copy": (),
    "t_copy": (),
    "transpose_copy": (0, 1),
    "unfold_copy": (0, 3, 2),
    "unsqueeze_copy": (1,),
    "view_copy": ((25,),),
}


def _copied(name: str) -> Function:
    return lambda x: getattr(torch, name)(x.sin(), *COPIES[name])


INNER |= {name: _copied(name) for name in COPIES}


def _compiled(function: Function) -> Function:
    return torch.compile(function, backend="jax")  # type: ignore[return-value]  # torch's overloads


def _in_step(function: Function) -> Function:
    """The gradient of a function is the gradient that `jit` finds within one step."""

    def step(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(function(x), x)
        return gradient

    def product(x: torch.Tensor) -> torch.Tensor:
        return (jaxtorch.jit(step)(x).detach() * x).sum()

    return product


DOORS = {"pure": jaxtorch.pure, "jit": _in_step, "compile": _compiled}


def _under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.T * 2


def _into_zeros(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros_like(x)
    buffer.copy_(x.sin())
    return buffer.detach()


CUT: dict[str, Function] = {
    "an argument": lambda x: x.detach(),
    "its view": lambda x: x.T.detach(),
    "a view of it": lambda x: x.detach().T,
    "a result": lambda x: x.sin().detach(),
    "a view of a result": lambda x: x.sin().T.detach()[:, :5],
    "in place": lambda x: x.sin().detach_(),
    "data": lambda x: x.sin().data.T,
    "conjugated": lambda x: x.to(torch.complex64).conj().detach().real,
    "no_grad": _under_no_grad,
    "written": _into_zeros,
}


def _gradient(
    device: str, function: Function, wrap: Callable[[Function], Function]
) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(5, 5).to(device).requires_grad_()
    wrap(lambda x: _squared(function(x)))(x).backward()
    assert x.grad is not None
    return x.grad.cpu()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", INNER)
def test_through_an_operator_that_runs_others(name: str, door: str) -> None:
    found = _gradient("jax", INNER[name], DOORS[door])
    expected = _gradient("cpu", INNER[name], lambda f: f)
    assert expected.any()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CUT)
def test_not_through_what_is_detached(name: str) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return CUT[name](x) * x.cos()

    found = _gradient("jax", product, jaxtorch.pure)
    torch.testing.assert_close(found, _gradient("cpu", product, lambda f: f))
