"""Ordinary products are chosen for in C++; every other one reaches the Python function. Both give the CPU's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import jaxtorch

from . import COMPILED
from .test_calls import in_python

pytestmark = COMPILED
Tensor = torch.Tensor
Call = Callable[[str], Any]


def of(device: str, *size: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    numbers = torch.randn(size, generator=generator, device="cpu")
    return (3 * numbers).to(dtype).to(device).requires_grad_(grad)


def layer(device: str, grad: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    return of(device, 2, 3, 4, grad=grad), of(device, 5, 4, grad=grad), of(device, 5, grad=grad)


def gradients(result: Tensor, *tensors: Tensor) -> list[Tensor]:
    return [result, *torch.autograd.grad(result.square().sum(), tensors)]


def second(device: str) -> list[Tensor]:
    x, w, b = layer(device)
    (first,) = torch.autograd.grad(F.linear(x, w, b).square().sum(), w, create_graph=True)
    return list(torch.autograd.grad(first.square().sum(), (x, w)))


ORDINARY: dict[str, Call] = {
    "linear": lambda d: F.linear(*layer(d, grad=False)),
    "linear without a bias": lambda d: F.linear(*layer(d, grad=False)[:2]),
    "linear of a vector": lambda d: F.linear(of(d, 4), of(d, 5, 4)),
    "linear with gradients": lambda d: gradients(F.linear(*(t := layer(d))), *t),
    "linear without grad mode": torch.no_grad()(lambda d: F.linear(*layer(d))),
    "matmul": lambda d: torch.matmul(of(d, 2, 3, 4), of(d, 4, 5)),
    "matmul of vectors": lambda d: torch.matmul(of(d, 4), of(d, 4)),
    "matmul with gradients": lambda d: gradients(
        torch.matmul(a := of(d, 2, 3, 4, grad=True), b := of(d, 4, 5, grad=True)), a, b
    ),
    "doubles": lambda d: F.linear(
        of(d, 3, 4, dtype=torch.float64), of(d, 5, 4, dtype=torch.float64)
    ),
}


class Mode(TorchDispatchMode):
    """Sees the parts of composites."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


def in_mode(device: str) -> Tensor:
    x, w, b = layer(device)
    with Mode():
        return F.linear(x, w, b)


def in_forward_mode(device: str) -> tuple[Tensor, Tensor]:
    x, w, b = layer(device, grad=False)
    with forward_ad.dual_level():
        result = F.linear(forward_ad.make_dual(x, x + 1), w, b)
        primal, tangent = forward_ad.unpack_dual(result)
        return primal, tangent


def conjugated(device: str) -> Tensor:
    z = torch.complex(of(device, 3, 3), of(device, 3, 3) + 1)
    return z.conj() @ z


def of_product(device: str, transform: Any) -> Tensor:
    w = of(device, 4, 5)
    result: Tensor = transform(lambda x: (x @ w).square().sum())(of(device, 3, 4))
    return result


OTHERS: dict[str, Call] = {
    "a second derivative": second,
    "integers": lambda d: of(d, 3, 4, dtype=torch.int64) @ of(d, 4, 5, dtype=torch.int64),
    "a conjugated matrix": conjugated,
    "a weight that is a vector": lambda d: F.linear(of(d, 3, 4), of(d, 4)),
    "a bias without dimensions": lambda d: F.linear(of(d, 3, 4), of(d, 5, 4), of(d)),
    "a mode": in_mode,
    "forward mode": in_forward_mode,
    "grad": lambda d: of_product(d, torch.func.grad),
    "jvp": lambda d: torch.func.jvp(lambda x: x @ x.T, (of(d, 3, 4),), (of(d, 3, 4) + 1,)),
}


def check(device_result: Any, expected: Any) -> None:
    flat = [[r] if isinstance(r, Tensor) else list(r) for r in (device_result, expected)]
    for a, b in zip(*flat, strict=True):
        assert (a.device.type, a.requires_grad) == ("jax", b.requires_grad)
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-4)


def in_this_thread(call: Callable[[], object]) -> set[str]:
    """The files of ours whose functions a call runs, backward passes included."""
    with torch.autograd.set_multithreading_enabled(False):
        return in_python(call)


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_product_runs_no_python_of_products(name: str) -> None:
    expected = ORDINARY[name]("cpu")
    for _ in range(3):
        check(ORDINARY[name]("jax"), expected)
    assert "operators/products.py" not in in_this_thread(lambda: ORDINARY[name]("jax"))


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_product_reaches_python(name: str) -> None:
    expected = OTHERS[name]("cpu")
    for _ in range(2):
        check(OTHERS[name]("jax"), expected)
    assert "operators/products.py" in in_this_thread(lambda: OTHERS[name]("jax"))


@pytest.mark.parametrize("transform", [torch.func.hessian, torch.func.jacfwd, torch.func.jacrev])
def test_transforms(transform: Any) -> None:
    check(of_product("jax", transform), of_product("cpu", transform))


def test_a_batch() -> None:
    def run(device: str) -> Tensor:
        _, w, b = layer(device, grad=False)
        return torch.vmap(lambda x: F.linear(x, w, b))(of(device, 6, 3, 4))

    check(run("jax"), run("cpu"))


def test_in_captured_code_after_an_eager_call() -> None:
    x, w, b = layer("jax")
    F.linear(x, w, b)
    run = jaxtorch.jit(lambda x, w, b: gradients(F.linear(x, w, b), x, w, b)[1:])
    check(run(x, w, b), gradients(F.linear(*(t := layer("cpu"))), *t)[1:])


@pytest.mark.parametrize(
    "call",
    [
        lambda d: F.linear(of(d, 3, 4), of(d, 5, 3)),
        lambda d: F.linear(of(d, 3, 4), of(d, 5, 4), of(d, 6)),
        lambda d: F.linear(of(d, 3, 4), of(d, 5, 4, dtype=torch.float64)),
        lambda d: of(d, 3, 4) @ of(d, 3, 4),
        lambda d: of(d) @ of(d, 3, 4),
    ],
    ids=["sizes", "bias", "dtypes", "matmul", "no dimensions"],
)
def test_errors_are_the_cpus(call: Call) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever torch raises
        call("cpu")
    for _ in range(2):
        with pytest.raises(type(expected.value)):
            call("jax")


def test_a_tensor_of_another_device() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="same device"):
            F.linear(of("jax", 3, 4), of("cpu", 5, 4))
