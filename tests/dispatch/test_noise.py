"""Random bits in blocks: they are JAX's own numbers, the same in captured code, and need few programs."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import jaxtorch
from jaxtorch.dispatch.noise import block_sizes
from jaxtorch.programs import stats

SHAPES = [(3,), (256,), (257,), (2, 3, 5, 7), (4096,), (64, 3, 7, 7), (3, 70_001), (1 << 20,)]
DTYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: jax.numpy.bfloat16,
}


def _jax_key(seed: int) -> jax.Array:
    """The key whose numbers the first draw after `torch.manual_seed(seed)` has."""
    return jax.random.key(seed, impl="threefry2x32")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_uniform_numbers_are_those_of_jax(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    drawn = torch.rand(shape, dtype=dtype, device="jax")
    with jax.enable_x64(True):
        expected = np.asarray(jax.random.uniform(_jax_key(7), shape, DTYPES[dtype]))
    np.testing.assert_array_equal(drawn.double().cpu().numpy(), expected.astype(np.float64))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_normal_numbers_are_those_of_jax(shape: tuple[int, ...]) -> None:
    torch.manual_seed(7)
    drawn = torch.randn(shape, device="jax")
    expected = np.asarray(jax.random.normal(_jax_key(7), shape, np.float32))
    np.testing.assert_allclose(drawn.cpu().numpy(), expected, rtol=1e-6, atol=1e-7)


def _dropout(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(torch.ones_like(x), 0.3)


@pytest.mark.parametrize("front_door", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("shape", [(5,), (300, 17), (2, 3, 70_001)], ids=str)
@pytest.mark.parametrize(
    "draw", [torch.rand_like, torch.randn_like, _dropout, torch.bernoulli, torch.poisson]
)
def test_captured_code_draws_the_same_numbers(draw, shape, front_door) -> None:
    x = torch.full(shape, 0.4, device="jax")
    torch.manual_seed(3)
    expected = [draw(x), draw(x)]
    torch.manual_seed(3)
    captured = front_door(lambda x: draw(x))
    for value in expected:
        torch.testing.assert_close(captured(x), value, rtol=1e-6, atol=1e-7)


def test_new_shapes_compile_no_threefry() -> None:
    torch.rand(5000, device="jax")
    before = len(stats.compiled)
    for n in range(4100, 4110):
        torch.rand(n, device="jax")
        torch.empty(n, device="jax").normal_()
    named = [r.name for r in stats.compiled[before:]]
    assert len(named) >= 20, "each shape compiles a program that joins blocks"
    assert "random bits" not in named


@given(st.integers(1, 1 << 32))
def test_blocks_cover_the_row(count: int) -> None:
    sizes = block_sizes(count)
    assert sum(sizes) >= count
    assert sum(sizes) - count < max(256, count / 3)
    assert len(sizes) <= 13 * 4 + count // (1 << 24)


def test_seeds_and_calls_are_independent() -> None:
    """Rank correlations between neighbouring seeds, successive calls and neighbouring elements."""
    rows = []
    for seed in range(8):
        torch.manual_seed(seed)
        rows += [torch.rand(10_000, device="jax").cpu().numpy() for _ in range(2)]
    pairs = [*itertools.combinations(rows, 2), *((row[1:], row[:-1]) for row in rows)]
    chances = [scipy.stats.spearmanr(*pair).pvalue for pair in pairs]
    # Right samplers give uniform chances.
    assert scipy.stats.kstest(chances, "uniform").pvalue > 1e-3
    assert min(chances) > 1e-3 / len(chances)
