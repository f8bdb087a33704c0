"""A tensor made like another one has its sharding: `*_like`, and `new_*` of the same size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch

import jaxtorch
from tests.sharding.on_8_devices._meshes import MESHES, P, Tensor, numbers, sharded, spec_of

Make: TypeAlias = "Callable[[Tensor], Tensor]"

LIKE: dict[str, Make] = {
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 2),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 5),
    "randint_like from": lambda x: torch.randint_like(x, 2, 5),
    "zeros_like of a dtype": lambda x: torch.zeros_like(x, dtype=torch.int64),
    "empty_like of a dtype": lambda x: torch.empty_like(x, dtype=torch.bool),
    "new_empty": lambda x: x.new_empty(x.shape),
    "new_empty_strided": lambda x: x.new_empty_strided(x.shape, (4, 1)),
    "new_zeros": lambda x: x.new_zeros(x.shape),
    "new_ones": lambda x: x.new_ones(x.shape),
    "new_full": lambda x: x.new_full(x.shape, 2),
}
OTHER: dict[str, Make] = {
    "new_empty": lambda x: x.new_empty(3),
    "new_empty_strided": lambda x: x.new_empty_strided((3, 4), (1, 3)),
    "new_zeros": lambda x: x.new_zeros(4, 8),
    "new_ones": lambda x: x.new_ones(()),
    "new_full": lambda x: x.new_full((4, 8), 2.5),
}
WAYS: dict[str, Callable[[Make], Make]] = {
    "eager": lambda f: f,
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}


def test_the_table_has_all_factories() -> None:
    """Of torch that take a model."""
    names = {n for n in dir(torch) if n.endswith("_like") and n[0] != "_"}
    names |= {n for n in dir(Tensor) if n.startswith("new_")}
    names -= {"new_tensor"}  # its values come from the host
    assert names == {name.split()[0] for name in LIKE}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LIKE)
def test_a_tensor_like_another_lies_like_it(name: str, way: str, mesh: str) -> None:
    make = WAYS[way](LIKE[name])
    for spec in (P("data", "model"), P(None, "data"), P("data", "model")):
        x = sharded(numbers(8, 4), spec, MESHES[mesh])
        for _ in range(2):
            made = make(x)
            assert spec_of(made) == spec
            model = LIKE[name](numbers(8, 4))
            assert (made.shape, made.dtype, made.stride()) == (
                model.shape,
                model.dtype,
                model.stride(),
            )


@pytest.mark.parametrize("name", ["empty_like", "zeros_like", "rand_like"])
def test_like_a_transposed_tensor(name: str) -> None:
    for way in WAYS.values():
        made = way(lambda x: LIKE[name](x.t()))(sharded(numbers(8, 4), P("data", "model")))
        assert spec_of(made) == P("model", "data")


@pytest.mark.parametrize("name", OTHER)
def test_a_new_tensor_of_another_size(name: str) -> None:
    """Lies on one device, and moves with what is written to it; with a number, it is on each device."""
    x = sharded(numbers(8, 4), P("data", "model"))
    for _ in range(2):
        made, model = OTHER[name](x), OTHER[name](numbers(8, 4))
        assert spec_of(made) == (P() if name == "new_full" else None)
        assert (made.shape, made.stride()) == (model.shape, model.stride())
        if "empty" not in name:
            assert torch.equal(made.cpu(), model)


def test_on_the_cpu_they_are_of_the_cpu() -> None:
    x = sharded(numbers(8, 4), P("data"))
    assert torch.empty_like(x, device="cpu").device.type == "cpu"
    assert x.new_empty(3, device="cpu").device.type == "cpu"


def test_the_gradient_of_an_index_is_not_gathered() -> None:
    """Its formula writes to `grad.new_zeros`, whose sharding XLA chooses."""
    for take in (lambda x, i: x[i], lambda x, i: x.index_select(0, i)):
        x = sharded(numbers(16, 8), P(None, "model")).requires_grad_()
        y = take(x, torch.tensor([0, 3, 5], device="jax"))
        y.backward(torch.ones_like(y))
        assert spec_of(x.grad) == P(None, "model")


@pytest.mark.parametrize("name", [*LIKE, *OTHER])
def test_beside_a_mesh_they_stay_on_one_device(name: str) -> None:
    """Once any array has been on a mesh, the kernels check the sharding of the model."""
    sharded(numbers(8, 4), P("data"))
    make = LIKE.get(name) or OTHER[name]
    made, model = make(numbers(8, 4).to("jax")), make(numbers(8, 4))
    assert spec_of(made) is None
    assert (made.shape, made.stride()) == (model.shape, model.stride())
