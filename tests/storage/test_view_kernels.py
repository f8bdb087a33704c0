"""The kernels of view operators remember geometries: what they remember must be what torch would compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.base import torch_private as private
from jaxtorch.base import torch_views
from jaxtorch.dispatch.registry import KERNELS
from jaxtorch.dispatch.schema import TENSOR, TENSORS, Signature
from jaxtorch.operators import views

Tensor = torch.Tensor
View = Callable[[Tensor], Tensor | Sequence[Tensor]]
aten = torch.ops.aten

# Torch makes these aliases in C++, without another operator; the last ones belong to sparse tensors.
IN_CPP = {"alias", "detach", "lift_fresh", "view.dtype", "_fw_primal"}
SPARSE = {"ccol_indices", "col_indices", "crow_indices", "row_indices", "indices", "values"}

# By name: the operator on a tensor of 2x3x4.
CALLS: dict[str, View] = {
    "_reshape_alias": lambda x: aten._reshape_alias(x[:, 0], [2, 2, 2], [x.stride(0), 2, 1]),
    "diagonal": lambda x: x.diagonal(1, 2, 0),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "permute": lambda x: x.permute(2, 0, 1),
    "select.int": lambda x: x.select(1, -1),
    "slice.Tensor": lambda x: x[:, 1:, ::2],
    "split.Tensor": lambda x: x.split(2, 1),
    "split_with_sizes": lambda x: x.split([1, 0, 3], 2),
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze.dim": lambda x: x[:, :1].squeeze(1),
    "squeeze.dims": lambda x: x[:1, :1].squeeze((0, 1)),
    "t": lambda x: x[1].t(),
    "transpose.int": lambda x: x.transpose(0, -1),
    "unbind.int": lambda x: x.unbind(1),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "unsqueeze": lambda x: x.unsqueeze(-2),
    "view": lambda x: x.view(2, 3, 2, -1),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)),
    "view_as_real": lambda x: torch.view_as_real(x),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), x.storage_offset() + 1),
    "as_strided at 0": lambda x: x.as_strided((2, 2), (4, 1), 0),
    "of no elements": lambda x: x[:, 3:].transpose(0, 1),
    "of no dimensions": lambda x: x[0, 0, 0].unsqueeze(0),
}

REAL = sorted(set(CALLS) - {"view_as_complex", "view_as_real"})

BLOCKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def _below_autograd(name: str) -> bool:
    composite = private.has_kernel(f"aten::{name}", "CompositeImplicitAutograd")
    keys = ("Meta", "CompositeExplicitAutograd")
    return not composite and any(private.has_kernel(f"aten::{name}", key) for key in keys)


def _views_of_one_tensor() -> set[str]:
    names = set()
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if full.startswith("aten::") and _below_autograd(name):
            signature = Signature(private.overload(name))
            tensors = sum(kind in (TENSOR, TENSORS) for kind in signature.kinds)
            if signature.is_view and not signature.written and tensors == 1:
                names.add(name)
    return names


def test_every_view_operator_has_a_kernel() -> None:
    """The class by torch's schemas: another torch may have more of them."""
    private_ones = {"_conj", "_neg_view", "_test_autograd_multiple_dispatch_view", "as_strided"}
    assert _views_of_one_tensor() - IN_CPP - SPARSE - private_ones == set(views.VIEWS)
    assert set(views.VIEWS) <= set(CALLS)


def _facts(t: Tensor) -> dict[str, object]:
    """What a view is besides its values."""
    return {
        "size": t.shape,
        "stride": t.stride(),
        "offset": t.storage_offset(),
        "dtype": t.dtype,
        "is a view": t._is_view(),
        "of": None if t._base is None else t._base.shape,
        "requires grad": t.requires_grad,
        "node": None if t.grad_fn is None else (t.grad_fn.name(), t.output_nr),
        "inference": t.is_inference(),
        "conj": t.is_conj(),
        "neg": t.is_neg(),
        "version": None if t.is_inference() else t._version,
        "type": type(t),
    }


def _list(result: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else result


def _source(device: str, view: str, block: str, at: int, lazy: str = "") -> Tensor:
    """A 2x3x4 tensor at an offset."""
    dtype = torch.complex64 if view == "view_as_real" or lazy else torch.float32
    with BLOCKS[block]():
        whole = torch.arange(60).to(dtype).to(device)
        if lazy == "conj":
            whole = (whole * 1j).conj()
        if lazy == "neg":
            whole = (whole * 1j).conj().imag
        whole.requires_grad_(block == "grad" and not lazy)
        return whole[at : at + 24].view(2, 3, 4)


@pytest.mark.parametrize("inside", BLOCKS)
@pytest.mark.parametrize("made", BLOCKS)
@pytest.mark.parametrize("name", CALLS)
def test_a_view_is_what_torch_makes(name: str, made: str, inside: str) -> None:
    for at in (0, 0, 2, 36):  # the second and later calls are remembered ones
        cpu, jax = (_source(device, name, made, at) for device in ("cpu", "jax"))
        with BLOCKS[inside]():
            theirs, ours = _list(CALLS[name](cpu)), _list(CALLS[name](jax))
            assert len(ours) == len(theirs)
            for a, b in zip(ours, theirs, strict=True):
                assert _facts(a) == _facts(b)
                assert torch.equal(a.detach().resolve_conj().cpu(), b.detach().resolve_conj())


@pytest.mark.parametrize("lazy", ["conj", "neg"])
@pytest.mark.parametrize("name", REAL)
def test_lazy_bits_stay(name: str, lazy: str) -> None:
    for at in (0, 0, 2):
        cpu, jax = (_source(device, name, "grad", at, lazy) for device in ("cpu", "jax"))
        for a, b in zip(_list(CALLS[name](jax)), _list(CALLS[name](cpu)), strict=True):
            assert _facts(a) == _facts(b)
            resolved = [t.resolve_conj().resolve_neg() for t in (a, b)]
            assert torch.equal(resolved[0].cpu(), resolved[1])


@pytest.mark.parametrize("name", REAL)
def test_a_remembered_view_in_captured_code_has_its_gradient(name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return sum(
            ((v * v).sum() for v in _list(CALLS[name](x + 1))), torch.zeros((), device=x.device)
        )

    want = _gradient(loss, "cpu")
    for function in (loss, jaxtorch.pure(loss), loss, jaxtorch.pure(loss)):
        torch.testing.assert_close(_gradient(function, "jax").cpu(), want)


def _gradient(function: Callable[[Tensor], Tensor], device: str) -> Tensor:
    x = torch.arange(24.0, device=device).view(2, 3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(function(x), x)
    return gradient


@pytest.mark.parametrize("name", REAL)
def test_transforms_see_the_views(name: str) -> None:
    def squares(x: Tensor) -> Tensor:
        return sum(((v * v).sum() for v in _list(CALLS[name](x))), torch.zeros((), device=x.device))

    cpu = torch.arange(48.0).view(2, 2, 3, 4)
    if name.startswith("as_strided"):  # under vmap it raises where the batch does not come first
        want, ours = (torch.func.grad(squares)(x[0]) for x in (cpu, cpu.to("jax")))
    else:
        want, ours = (torch.vmap(torch.func.grad(squares))(x) for x in (cpu, cpu.to("jax")))
    assert torch.equal(ours.cpu(), want)


WRONG: list[View] = [
    lambda x: x.view(5),
    lambda x: x.transpose(0, 2).view(24),
    lambda x: x.select(0, 2),
    lambda x: x.select(3, 0),
    lambda x: x.permute(0, 1),
    lambda x: x.expand(3, 3, 4),
    lambda x: x.t(),
    lambda x: x.split(-1),
    lambda x: x.split([1, 1], 2),
    lambda x: x.unfold(0, 3, 1),
    lambda x: x.diagonal(0, 1, 1),
    lambda x: x[:, ::0],
    lambda x: x.unsqueeze(4),
    lambda x: torch.view_as_complex(x),
    lambda x: torch.view_as_real(x),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_raise_torchs_error_each_time(wrong: View) -> None:
    cpu = torch.zeros(2, 3, 4)
    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)) as theirs:
        wrong(cpu)
    jax = cpu.to("jax")
    for _ in range(2):
        with pytest.raises(type(theirs.value)) as ours:
            wrong(jax)
        assert str(ours.value).split("\n")[0] == str(theirs.value).split("\n")[0]
    assert jax.transpose(0, 1).shape == (3, 2, 4)  # an error leaves the kernels usable


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_MOST", 8)
    kernel: Any = views._view_kernel(torch.ops.aten.select.int)
    cells = dict(zip(kernel.__code__.co_freevars, kernel.__closure__, strict=True))
    x = torch.arange(40.0, device="jax")
    for i in range(40):
        assert kernel(x, 0, i).item() == i
        assert len(cells["known"].cell_contents) <= 8


def test_a_view_of_a_subclass_is_torchs() -> None:
    class Marked(torch.Tensor):
        pass

    for _ in range(2):
        a, b = (torch.arange(6.0, device=d).as_subclass(Marked) for d in ("jax", "cpu"))
        assert _facts(a.view(2, 3)[1]) == _facts(b.view(2, 3)[1])


@pytest.mark.parametrize("name", CALLS)
def test_torch_gets_tuples_as_the_geometry_of_an_alias(name: str, monkeypatch: Any) -> None:
    """torch 2.15 refuses a list and a `torch.Size`."""
    made = torch_views.reinterpret

    def strict(tensor: Tensor, size: object, stride: object, increment: int) -> Tensor:
        assert type(size) is type(stride) is tuple
        alias: Tensor = made(tensor, size, stride, increment)
        return alias

    monkeypatch.setattr(torch_views, "reinterpret", strict)
    kernels: list[Any] = [KERNELS[name] for name in views.VIEWS if name in KERNELS]
    for kernel in kernels:
        kernel = getattr(
            kernel, "general", kernel
        )  # what runs before the compiled one remembers a call
        cells = dict(zip(kernel.__code__.co_freevars, kernel.__closure__ or (), strict=True))
        if "reinterpret" in cells:
            monkeypatch.setattr(cells["reinterpret"], "cell_contents", strict)
    x = _source("jax", name, "grad", 0)
    for _ in range(2):  # the second call is a remembered one
        CALLS[name](x)
        CALLS[name](x.detach())
    assert torch.ones(2, dtype=torch.complex64, device="jax").conj().imag.is_neg()
