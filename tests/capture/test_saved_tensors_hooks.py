"""`saved_tensors_hooks` around captured code get what it saves; inside they work or are refused by name and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Tensor = torch.Tensor
X = [1.0, 2.0, 3.0]


def square(x: Tensor) -> Tensor:
    return x * x


def by_scan(x: Tensor) -> Tensor:
    return jaxtorch.scan(lambda c, e: (c * e * e, None), torch.ones_like(x[0]), x)[0]


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "pure": jaxtorch.pure(square),
    "compile": torch.compile(square, backend="jax"),
    "call_jax": lambda x: jaxtorch.call_jax(square, x),
    "scan": by_scan,
}


def gradient(function: Any, hooks: Any = None) -> Tensor:
    x = torch.tensor(X, device="jax", requires_grad=True)
    if hooks is None:
        y = function(x)
    else:
        with hooks:
            y = function(x)
    y.sum().backward()
    assert x.grad is not None
    return x.grad.cpu()


@pytest.mark.parametrize("name", CALLS)
def test_around_a_call(name: str) -> None:
    """The residuals are what is saved: with those zero, so is the gradient. A program known already heeds them too."""
    packed: list[Any] = []

    def pack(t: Tensor) -> Tensor:
        packed.append((t.device.type, t.shape))
        return t * 0

    plain = gradient(CALLS[name])
    assert plain.all()
    assert not gradient(CALLS[name], saved_tensors_hooks(pack, lambda t: t)).any()
    assert packed
    assert {device for device, _ in packed} == {"jax"}
    torch.testing.assert_close(gradient(CALLS[name]), plain)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_saved_on_the_cpu_comes_back(name: str) -> None:
    torch.testing.assert_close(gradient(CALLS[name], save_on_cpu()), gradient(CALLS[name]))


def test_the_first_call_is_traced_without_them() -> None:
    f = jaxtorch.pure(lambda x: (x * x).sin())
    torch.testing.assert_close(
        gradient(f, save_on_cpu()), gradient(lambda x: (x * x).sin()), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("function", [square, by_scan])
def test_inside_a_step(function: Any) -> None:
    def zeroed(x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda t: t * 0, lambda t: t):
            return function(x)

    x = torch.tensor(X, device="jax", requires_grad=True)
    jaxtorch.jit(lambda: zeroed(x).sum().backward())()
    assert x.grad is not None
    assert not x.grad.any()


def hooked(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        return x * x


def offloaded(x: Tensor) -> Tensor:
    with save_on_cpu():
        return x * x


def around_a_step(x: Tensor) -> None:
    step = jaxtorch.jit(lambda: (x * x).sum().backward())
    step()
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        step()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            jaxtorch.pure(hooked),
            r"inside pure code.*\(.*test_saved.*, line \d+\)\. Enter them around",
        ),
        (jaxtorch.pure(offloaded), r"inside pure code.*checkpoint"),
        (
            jaxtorch.jit(lambda x: offloaded(x).sum().backward()),
            r"save_on_cpu.*\(.*test_saved.*, line \d+",
        ),
        (around_a_step, "Enter them inside the step"),
    ],
    ids=["pure", "save_on_cpu in pure", "save_on_cpu in jit", "around jit"],
)
def test_what_is_refused(call: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        call(torch.tensor(X, device="jax", requires_grad=True))


def test_torch_is_as_it_was() -> None:
    jaxtorch.pure(square)(torch.ones(2, device="jax"))
    with pytest.raises(CaptureError):
        jaxtorch.pure(hooked)(torch.ones(2, device="jax"))
    x = torch.ones(2, requires_grad=True)
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        square(x).sum().backward()
    assert seen
