"""Subclasses of Tensor on the device: made of its tensors, kept by operators, given back by captured code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch


class Named(torch.Tensor):
    """A subclass without code of its own."""


class Counting(torch.Tensor):
    """A subclass that sees each function that is called on it."""

    calls: tuple[str, ...] = ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.calls = (*Counting.calls, func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


MAKE = {
    "as_subclass": lambda x: x.as_subclass(Named),
    "the class": Named,
    "_make_subclass": lambda x: torch.Tensor._make_subclass(Named, x),
    "moved": lambda x: x.cpu().as_subclass(Named).to("jax"),
}
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda s: s * 2 + 1,
    "a view": lambda s: s[1:],
    "a transposition": lambda s: s.reshape(3, 1).T,
    "in place": lambda s: s.add_(1),
    "a clone": torch.clone,
    "several": lambda s: torch.stack([s, s]).split(1)[0],
    "a reduction": torch.sum,
    "a type": lambda s: s.double(),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_it_is_made_of_a_tensor(make: Callable[[Any], Any]) -> None:
    x = torch.arange(3.0, device="jax")
    s = make(x)
    assert type(s) is Named
    assert s.device.type == "jax"
    assert s.tolist() == [0.0, 1.0, 2.0]


def test_it_shares_its_memory() -> None:
    x = torch.arange(3.0, device="jax")
    s = x.as_subclass(Named)
    s += 1
    x *= 2
    assert x.tolist() == s.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize(
    "capture", [None, jaxtorch.pure, jaxtorch.jit], ids=["eager", "pure", "jit"]
)
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_an_operator_as_on_the_cpu(operator: Callable[[Any], Any], capture: Any) -> None:
    x = torch.arange(3.0).as_subclass(Named)
    ours = operator if capture is None else capture(lambda s: operator(s.clone()))
    for _ in range(2):
        expected, result = operator(x.clone()), ours(x.to("jax"))
        assert type(result) is type(expected) is Named
        torch.testing.assert_close(
            result.cpu().as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor)
        )


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_the_class_of_an_argument_is_part_of_the_program(capture: Any) -> None:
    f = capture(lambda a: a * (2 if type(a) is Named else 3))
    x = torch.ones(2, device="jax")
    for _ in range(2):
        assert f(x.as_subclass(Named)).tolist() == [2.0, 2.0]
        assert f(x).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("capture", [None, jaxtorch.pure], ids=["eager", "pure"])
def test_a_gradient_flows_through_it(capture: Any) -> None:
    def f(w: torch.Tensor) -> torch.Tensor:
        return (w.as_subclass(Named) * 3).sum()

    w = torch.ones(3, device="jax", requires_grad=True)
    for k in (1, 2):
        (f if capture is None else capture(f))(w).backward()
        assert w.grad is not None
        assert w.grad.tolist() == [3.0 * k] * 3


def test_it_sees_the_functions_that_are_called() -> None:
    calls = []
    for device in ("cpu", "jax"):
        Counting.calls = ()
        s = torch.ones(3, device=device).as_subclass(Counting)
        (s * 2).sum().item()
        calls.append(Counting.calls)
    assert calls[0] == calls[1] != ()


@pytest.mark.parametrize("move", [lambda m: m.to("jax"), lambda m: m.jax()], ids=["to", "jax"])
def test_a_lazy_norm_moves_to_the_device(move: Callable[[Any], Any]) -> None:
    norm = move(torch.nn.LazyBatchNorm1d())
    assert norm(torch.randn(4, 3, device="jax")).shape == (4, 3)
    assert norm.running_mean is not None
    assert norm.running_mean.device.type == "jax"
