"""A function of JAX has no effects: `jax_view` refuses code that gives a gradient to a tensor from outside.

Whichever way the code comes to the tensor, its `.grad` stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import jaxtorch

Tensor = torch.Tensor
X = jnp.arange(3.0) + 1


def by_name(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x * weight


def by_a_helper(weight: Tensor) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return x * weight

    return lambda x: scaled(x)


def in_containers(weight: Tensor) -> Callable[[Tensor], Tensor]:
    known: dict[str, list[Any]] = {"layers": [SimpleNamespace(weight=weight)]}
    return lambda x: x * known["layers"][0].weight


def by_a_view(weight: Tensor) -> Callable[[Tensor], Tensor]:
    def columns(x: Tensor) -> Tensor:
        return x @ weight.view(1, 3).t()

    return lambda x: columns(x)


def by_a_view_in_a_list(weight: Tensor) -> Callable[[Tensor], Tensor]:
    known = [[weight]]

    def flipped(x: Tensor) -> Tensor:
        return x * known[0][0].view(3, 1)[:, 0]

    return lambda x: flipped(x)


WAYS = [by_name, by_a_helper, in_containers, by_a_view, by_a_view_in_a_list]
DOORS: dict[str, Callable[[Any], Any]] = {
    "call": lambda view: view(X),
    "jit": lambda view: jax.jit(view)(X),
    "grad": lambda view: jax.grad(view)(X),
    "vmap": lambda view: jax.vmap(view)(X[None]),
    "call_jax in pure": lambda view: jaxtorch.pure(lambda x: jaxtorch.call_jax(view, x))(
        torch.ones(3).to("jax")
    ),
}


@pytest.mark.parametrize("had", [False, True], ids=["none before", "one before"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("door", DOORS)
def test_a_gradient_of_a_tensor_from_outside_is_refused(
    door: str, way: Callable[[Tensor], Callable[[Tensor], Tensor]], had: bool
) -> None:
    weight = torch.ones(3, device="jax", requires_grad=True)
    before = torch.full((3,), 2.0, device="jax") if had else None
    weight.grad = before
    product = way(weight)

    def step(x: Tensor) -> Tensor:
        loss = product(x).square().sum()
        loss.backward()
        return loss.detach()

    with pytest.raises(jaxtorch.CaptureError, match="or to its gradient"):
        DOORS[door](jaxtorch.jax_view(step))
    assert weight.grad is before
    if before is not None:
        assert before.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("door", ["call", "jit", "vmap"])
def test_a_gradient_that_the_code_takes_away_again_is_none(
    door: str, way: Callable[[Tensor], Callable[[Tensor], Tensor]]
) -> None:
    weight = torch.ones(3, device="jax", requires_grad=True)
    product = way(weight)

    def gradient(x: Tensor) -> Tensor | None:
        product(x).sum().backward()
        found, weight.grad = weight.grad, None
        return found

    assert DOORS[door](jaxtorch.jax_view(gradient)).ravel().tolist() == X.tolist()
    assert weight.grad is None
