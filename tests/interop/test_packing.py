"""Small arrays between two programs travel as few."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import jaxtorch
from jaxtorch.programs import compiled
from jaxtorch.programs.packing import Packing

DTYPES = (np.float32, np.int32, np.bool_, np.complex64, np.uint8)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@settings(deadline=None)  # each shape is compiled
@given(st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=60), st.integers(0, 2**31))
def test_what_is_packed_comes_out_again(
    kinds: list[tuple[tuple[int, ...], type]], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    arrays = [generator.integers(0, 2, shape).astype(dtype) for shape, dtype in kinds]
    packing = Packing(arrays)
    again = packing.unpack(packing.pack([jnp.asarray(a) for a in arrays]))
    assert len(again) == len(arrays)
    for before, after in zip(arrays, again, strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before)


def test_large_arrays_and_random_keys_stay_as_they_are() -> None:
    large, key = jnp.ones(100_000), jax.random.key(0)
    packed = Packing([large, key, large, key]).pack([large, key, large, key])
    assert packed == [large, key, large, key]


def test_negative_largest_packs_nothing() -> None:
    arrays = [jnp.ones(2), jnp.ones(3), jnp.ones(0)]
    assert Packing(arrays, largest=-1).pack(arrays) == arrays


def test_a_deep_model_keeps_few_arrays_for_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(40)]
    model = nn.Sequential(*layers).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    model(x).square().sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    model.to("jax")
    seen: list[int] = []
    run = compiled.CompiledFunction.run_saving

    def counted(self: compiled.CompiledFunction, arrays: list[jax.Array]) -> tuple[list, list]:
        outputs, saved = run(self, arrays)
        given_again = {id(a) for a in arrays}
        seen.append(sum(id(a) not in given_again for a in saved))
        return outputs, saved

    monkeypatch.setattr(compiled.CompiledFunction, "run_saving", counted)
    jaxtorch.pure(model)(x.to("jax")).square().sum().backward()
    assert seen[0] < 20  # of 40 layers' activations
    for p, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad.cpu(), grad)
