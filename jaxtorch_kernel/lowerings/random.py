"""Samplers. The dispatch passes `Draws` as the first argument, so that random numbers are not constants of a program.

Samples are drawn in the opmath dtype and rounded once. Distributions that take the logarithm of a uniform number
draw it from (0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .draws import Draws
from .factories import factory
from .promote import cast, default_dtype, kind_of, opmath, widen
from .registry import lower
from .types import Array, Operand, Scalar


def _float_for(dtype: DTypeLike) -> np.dtype:
    """The dtype to sample in for a result of `dtype`, which may be an integer."""
    return opmath(dtype) if kind_of(dtype) in "fc" else np.dtype(np.float32)


def _normal(
    draws: Draws, shape: Sequence[int], dtype: DTypeLike, mean: Operand, std: Operand
) -> Array:
    wide = opmath(dtype)
    return draws.normal(shape, wide) * cast(std, wide) + cast(mean, wide)


# -- uniform and normal ----------------------------------------------------------------------------


@lower("uniform", random=True)
def uniform(draws: Draws, self: Array, low: Operand = 0.0, high: Operand = 1.0) -> Array:
    wide = opmath(self.dtype)
    low, high = cast(low, wide), cast(high, wide)
    return draws.uniform(self.shape, self.dtype).astype(wide) * (high - low) + low


@factory("rand", "rand.generator", random=True)
def rand(draws: Draws, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return draws.uniform(size, dtype or default_dtype())


@factory("rand_like", "rand_like.generator", random=True)
def rand_like(draws: Draws, self: Array, dtype: np.dtype | None) -> Array:
    return draws.uniform(self.shape, dtype or self.dtype)


@lower("normal_", "normal_functional", random=True)
def normal(draws: Draws, self: Array, mean: Scalar = 0.0, std: Scalar = 1.0) -> Array:
    return _normal(draws, self.shape, self.dtype, mean, std)


@lower("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", random=True)
def normal_of(draws: Draws, mean: Operand, std: Operand = 1.0) -> Array:
    arrays = [x for x in (mean, std) if isinstance(x, Array)]
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    return _normal(draws, shape, arrays[0].dtype, mean, std)


@factory("normal.float_float", random=True)
def normal_sized(
    draws: Draws, mean: Scalar, std: Scalar, size: Sequence[int], dtype: np.dtype | None
) -> Array:
    return _normal(draws, size, dtype or default_dtype(), mean, std)


@factory("randn", "randn.generator", random=True)
def randn(draws: Draws, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return draws.normal(size, opmath(dtype or default_dtype()))


@factory("randn_like", "randn_like.generator", random=True)
def randn_like(draws: Draws, self: Array, dtype: np.dtype | None) -> Array:
    return draws.normal(self.shape, opmath(dtype or self.dtype))


@lower("log_normal", random=True)
def log_normal(draws: Draws, self: Array, mean: Scalar = 1.0, std: Scalar = 2.0) -> Array:
    return jnp.exp(_normal(draws, self.shape, self.dtype, mean, std))


# -- integers --------------------------------------------------------------------------------------


def _integers(draws: Draws, shape: Sequence[int], low: int, last: int) -> Array:
    """Integers from `low` to `last`, both included.

    As in torch, they are the remainders of random bits, so the first ones are slightly more likely: for a range below
    2**48 by at most one in 65,536.
    """
    span = last - low + 1
    bits = draws.bits(shape, 32 if span <= 1 << 16 else 64)
    if span < 1 << 64:
        bits = bits % bits.dtype.type(span)
    return jax.lax.bitcast_convert_type(bits.astype(np.uint64), np.int64) + np.int64(low)


def _largest(dtype: DTypeLike) -> int:
    """The largest result of `random_()`: the end of the range of integers that this dtype represents without gaps."""
    dtype = np.dtype(dtype)
    kind = kind_of(dtype)
    if kind == "b":
        return 1
    if kind == "i":
        return min(int(np.iinfo(dtype).max), np.iinfo(np.int64).max)
    return 1 << (jnp.finfo(dtype).nmant + 1)


@lower("random", random=True)
def random(draws: Draws, self: Array) -> Array:
    return _integers(draws, self.shape, 0, _largest(self.dtype))


@lower("random.from", random=True)
def random_from(draws: Draws, self: Array, low: int, high: int | None) -> Array:
    return _integers(
        draws, self.shape, low, _largest(self.dtype) if high is None else _last(low, high)
    )


@lower("random.to", random=True)
def random_to(draws: Draws, self: Array, high: int) -> Array:
    return _integers(draws, self.shape, 0, _last(0, high))


def _last(low: int, high: int) -> int:
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    return high - 1


@factory("randint", "randint.generator", random=True)
def randint(draws: Draws, high: int, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return _integers(draws, size, 0, _last(0, high))


@factory("randint.low", "randint.low_generator", random=True)
def randint_low(
    draws: Draws, low: int, high: int, size: Sequence[int], dtype: np.dtype | None
) -> Array:
    return _integers(draws, size, low, _last(low, high))


@factory("randint_like", "randint_like.generator", random=True)
def randint_like(draws: Draws, self: Array, high: int, dtype: np.dtype | None) -> Array:
    return _integers(draws, self.shape, 0, _last(0, high))


@factory("randint_like.low_dtype", "randint_like.low_generator_dtype", random=True)
def randint_like_low(
    draws: Draws, self: Array, low: int, high: int, dtype: np.dtype | None
) -> Array:
    return _integers(draws, self.shape, low, _last(low, high))


@factory("randperm", "randperm.generator", random=True)
def randperm(draws: Draws, n: int, dtype: np.dtype | None) -> Array:
    # With 64 bits, equal keys are too unlikely to matter.
    return jax.lax.sort((draws.bits((n,), 64), jax.lax.iota(np.int64, n)), num_keys=1)[1]


# -- choices ---------------------------------------------------------------------------------------


@lower("bernoulli", random=True)
def bernoulli(draws: Draws, self: Array) -> Array:
    return _flips(draws, self.shape, self)


@lower("bernoulli.p", "bernoulli.Tensor", random=True)
def bernoulli_with(draws: Draws, self: Array, p: Operand = 0.5) -> Array:
    return _flips(draws, self.shape, p)


def _flips(draws: Draws, shape: Sequence[int], p: Operand) -> Array:
    dtype = _float_for(p.dtype) if isinstance(p, Array) else np.dtype(np.float32)
    if kind_of(dtype) == "c":
        raise TypeError("a complex number is not a probability")
    return draws.uniform(shape, dtype) < cast(p, dtype)


@lower("multinomial", random=True)
def multinomial(draws: Draws, self: Array, num_samples: int, replacement: bool = False) -> Array:
    if num_samples < 1 or self.shape[-1] > 1 << 24:
        raise ValueError("torch refuses this sample")
    (weights,) = widen(self)
    if not replacement:
        # The indices of the largest log(weight) + Gumbel noise are a sample without replacement.
        scores = jnp.log(weights) + draws.gumbel(weights.shape, weights.dtype)
        return jax.lax.top_k(scores, num_samples)[1]
    # Invert the distribution function. The bound excludes trailing categories of weight 0 if a point is rounded up.
    sums = jnp.cumsum(weights, -1)
    total = sums[..., -1:]
    points = draws.uniform((*self.shape[:-1], num_samples), weights.dtype) * total

    def invert(row: Array, point: Array, total: Array) -> Array:
        return jnp.minimum(jnp.searchsorted(row, point, side="right"), jnp.searchsorted(row, total))

    for _ in range(self.ndim - 1):
        invert = jax.vmap(invert)
    return invert(sums, points, total)


# -- other distributions ---------------------------------------------------------------------------


@lower("exponential", random=True)
def exponential(draws: Draws, self: Array, lambd: Scalar = 1.0) -> Array:
    wide = _float_for(self.dtype)
    return -jnp.log(draws.positive(self.shape, wide)) / cast(lambd, wide)


@lower("geometric", random=True)
def geometric(draws: Draws, self: Array, p: Scalar) -> Array:
    wide = _float_for(self.dtype)
    trials = jnp.log(draws.positive(self.shape, wide)) / jnp.log1p(-cast(p, wide))
    return jnp.maximum(jnp.ceil(trials), 1)


@lower("cauchy", random=True)
def cauchy(draws: Draws, self: Array, median: Scalar = 0.0, sigma: Scalar = 1.0) -> Array:
    wide = opmath(self.dtype)
    points = jnp.maximum(draws.uniform(self.shape, wide), jnp.finfo(wide).eps)
    return cast(median, wide) + cast(sigma, wide) * jnp.tan(math.pi * (points - 0.5))


@lower("poisson", random=True, meta=False)
def poisson(draws: Draws, self: Array) -> Array:
    return jax.random.poisson(draws.jax_key, widen(self)[0], dtype=np.int32).astype(self.dtype)


@lower("binomial", random=True, meta=False)
def binomial(draws: Draws, count: Array, prob: Array) -> Array:
    n, p = widen(count, prob)
    return jax.random.binomial(draws.jax_key, n, p).astype(count.dtype)


@lower("_standard_gamma", random=True, meta=False)
def standard_gamma(draws: Draws, self: Array) -> Array:
    (alpha,) = widen(self)
    return jax.random.gamma(draws.jax_key, alpha).astype(self.dtype)


@lower("_standard_gamma_grad")
def standard_gamma_grad(self: Array, output: Array) -> Array:
    alpha, sample = widen(self, output)
    return jax.lax.random_gamma_grad(alpha, sample).astype(self.dtype)


@lower("_sample_dirichlet", random=True, meta=False)
def sample_dirichlet(draws: Draws, self: Array) -> Array:
    (alpha,) = widen(self)
    return jax.random.dirichlet(draws.jax_key, alpha).astype(self.dtype)
