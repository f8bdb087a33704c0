"""Forward-mode derivatives through views, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

import jaxtorch

# Of a tensor of size (3, 4).
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(3, 2, 2),
    "reshape": lambda x: x.reshape(6, 2),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "view_as": lambda x: x.view_as(x),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "mT": lambda x: x.mT,
    "slice": lambda x: x[1:, ::2],
    "select a row": lambda x: x[1],
    "select a column": lambda x: x[:, 1],
    "select an element": lambda x: x[1, 2],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "expand": lambda x: x.expand(2, 3, 4),
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "tensor_split": lambda x: x.tensor_split(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 3), (4, 1), 1),
    "alias": lambda x: torch.ops.aten.alias(x),
    "real": lambda x: torch.complex(x, x * 2).real,
    "imag": lambda x: torch.complex(x, x * 2).imag,
    "view_as_real": lambda x: torch.view_as_real(torch.complex(x, x * 2)),
    "of a conjugate": lambda x: torch.complex(x, x * 2).conj().imag,
    "one of another": lambda x: x.t()[1:3, :2].unsqueeze(0).transpose(0, 2),
}
WRITABLE = [name for name in VIEWS if name not in ("expand", "unfold")]


# Another layout than a fresh tensor's: a slice, a transpose.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "a slice": lambda x: torch.cat([x, x], 1)[:, :4],
    "a transpose": lambda x: x.t().contiguous().t(),
}


def same(function: Callable[[Tensor], Any], *size: int) -> None:
    """Whether both devices give the same results for one input, which is not all of its memory."""
    x = torch.linspace(0.1, 1.7, torch.Size(size or (3, 4)).numel(), device="cpu")
    x = x.reshape(size or (3, 4))
    expected, found = function(x), function(x.to("jax"))
    for theirs, ours in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        assert ours.is_jax
        torch.testing.assert_close(ours.cpu(), theirs)


def duals(function: Callable[[Tensor], Tensor], primal: Tensor, tangent: Tensor) -> tuple[Any, Any]:
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(function(forward_ad.make_dual(primal, tangent)))
        return result.primal.clone(), result.tangent.clone()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_of_a_dual_tensor(view: Callable[[Tensor], Tensor]) -> None:
    def both(x: Tensor) -> Any:
        tangent = x.cos()
        # A slice's memory is more than its elements.
        return [duals(lambda d: view(d).sin(), like(x), tangent) for like in LAYOUTS.values()]

    same(both)


@pytest.mark.parametrize("view", WRITABLE)
def test_a_write_of_a_dual_tensor_through_a_view(view: str) -> None:
    def write(x: Tensor) -> Tensor:
        base = torch.cat([x.detach(), x.detach()], 1)[:, :4]
        part = VIEWS[view](base)
        if part._base is not None:  # of a complex tensor made on the way, the view is all there is
            part.mul_(VIEWS[view](x))
        return part.sin().sum() + base.sin() + x

    same(lambda x: duals(write, x, x.cos()))


@pytest.mark.parametrize("view", ["reshape", "slice", "one of another"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: func.jacfwd(f)(x),
        lambda f, x: func.hessian(lambda y: (f(y) ** 2).sum())(x),
        lambda f, x: func.linearize(f, x)[1](x.cos()),
        lambda f, x: func.jvp(f, (x,), (x.cos(),)),
        lambda f, x: func.vmap(lambda s: func.jvp(f, (s,), (s.cos(),)))(torch.stack([x, x + 1])),
    ],
    ids=["jacfwd", "hessian", "linearize", "jvp", "vmap of jvp"],
)
def test_a_transform_of_a_view(view: str, transform: Callable[..., Any]) -> None:
    same(lambda x: transform(lambda y: VIEWS[view](y).sin(), LAYOUTS["a slice"](x)))


def test_the_hessian_of_a_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).cpu()

    def hessian(x: Tensor) -> Any:
        parameters = {n: p.detach().to(x.device) for n, p in network.named_parameters()}
        return func.hessian(lambda p: func.functional_call(network, p, (x,)).pow(2).mean())(
            parameters
        )

    same(hessian)


def test_a_tangent_is_made_in_captured_code() -> None:
    def captured(x: Tensor) -> Any:
        strided = LAYOUTS["a slice"](x)
        return func.jvp(lambda y: y.t().reshape(-1).sin(), (strided,), (x.cos(),))[1]

    same(lambda x: (jaxtorch.pure(captured) if x.is_jax else captured)(x))
