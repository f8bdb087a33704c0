"""Captured code that reads the `.grad` of its arguments, and code that only computes gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import grad

import jaxtorch

DOORS = [jaxtorch.pure, jaxtorch.jit]


def leaf(value: float = 1.0) -> torch.Tensor:
    return torch.full((3,), value, device="jax", requires_grad=True)


@pytest.mark.parametrize("door", DOORS)
def test_the_gradient_of_an_argument_is_that_of_the_call(door: Callable[..., Any]) -> None:
    def code(w: torch.Tensor) -> torch.Tensor:
        return w * 2 if w.grad is None else w * w.grad

    captured, without, with_one = door(code), leaf(), leaf()
    for value in (4.0, 6.0):
        with_one.grad = torch.full_like(with_one, value)
        for w in (without, with_one, without, with_one):
            assert torch.equal(captured(w), code(w))
    with_one.grad = None
    assert torch.equal(captured(with_one), code(with_one))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("called", ["torch.autograd.grad", "grad"])
def test_code_that_computes_a_gradient_is_traced_once(
    door: Callable[..., Any], called: str
) -> None:
    names: dict[str, Any] = {"torch": torch, "grad": grad}
    exec(f"def code(x): return {called}((x * x * x).sum(), x, create_graph=True)[0]", names)
    captured = door(names["code"])
    for k in range(4):
        x = leaf(float(k))
        torch.testing.assert_close(captured(x), 3 * x.detach() ** 2, check_stride=False)
    assert captured.cache_info().misses == 1


def test_each_call_gives_its_own_leaf_a_gradient() -> None:
    def attack(x: torch.Tensor) -> torch.Tensor:
        (x * x * x).sum().backward()
        return x.grad.sign()

    captured = jaxtorch.jit(attack)
    for k in range(1, 5):
        x = leaf(float(k))
        assert torch.equal(captured(x), torch.ones_like(x))
        assert torch.equal(x.grad, torch.full_like(x, 3.0 * k * k))
    assert captured.cache_info().misses == 1


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("named", [False, True], ids=["an argument", "by name"])
def test_whether_a_leaf_has_a_gradient(capture: Callable[..., Any], named: bool) -> None:
    w, x = leaf(), torch.ones(3, device="jax")
    if named:
        captured = capture(lambda x, _: x * (2 if w.grad is None else 3))
    else:
        captured = capture(lambda x, w: x * (2 if w.grad is None else 3))
    for gradient in (None, torch.ones_like(w), None, torch.ones_like(w), torch.zeros_like(w), None):
        w.grad = gradient
        assert (
            captured(x, w.detach() if named else w).tolist()
            == [2.0 if gradient is None else 3.0] * 3
        )


def test_leaves_that_take_turns_accumulate_each_for_itself() -> None:
    def code(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        loss = (x * by).sum()
        loss.backward()
        return loss

    seen = []
    for step in (jaxtorch.jit(code), code):
        one, two, by = leaf(), leaf(2.0), torch.full((3,), 2.0, device="jax")
        for k in range(8):
            step((one, two, two)[k % 3], by)
        two.grad = None
        hook = one.register_hook(lambda g: g * 10)
        step(one, by), step(two, by)
        hook.remove()
        step(one, by), step(two, by)
        seen.append([one.grad.tolist(), two.grad.tolist()])
    assert seen[0] == seen[1]


def test_a_leaf_and_a_tensor_with_a_history_take_turns() -> None:
    def code(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum()

    captured = jaxtorch.pure(code)
    w = leaf()
    for k in range(3):
        captured(w * 2.0).backward()
        captured(w).backward()
        torch.testing.assert_close(w.grad, torch.full_like(w, 10.0 * (k + 1)))


@pytest.mark.parametrize("make", [torch.clone, torch.detach, lambda x: x * 1.0])
def test_a_gradient_by_a_leaf_that_pure_code_makes(
    make: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).to("jax")

    def penalty(x: torch.Tensor) -> torch.Tensor:
        z = make(x).requires_grad_(True)
        (slope,) = grad(model(z).sum(), z, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    x = torch.randn(5, 3, device="jax")
    captured = jaxtorch.pure(penalty)
    for _ in range(2):
        expected = grad(penalty(x), list(model.parameters()), allow_unused=True)
        found = grad(captured(x), list(model.parameters()), allow_unused=True)
        assert [g is None for g in found] == [g is None for g in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert theirs is None or torch.allclose(ours, theirs, atol=1e-6)
