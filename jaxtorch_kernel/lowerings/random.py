"""Samplers. The dispatch passes a JAX key as the first argument, so that random numbers are not constants of a program.

Samples are drawn in the opmath dtype and rounded once. Distributions that take the logarithm of a uniform number
draw it from (0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .factories import factory
from .promote import cast, default_dtype, kind_of, opmath, widen
from .registry import lower
from .types import Array, Operand, Scalar


def _uniform(key: Array, shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Numbers in [0, 1), for complex dtypes in both parts.

    They are drawn in `dtype` itself, because rounding from a wider dtype could give 1.
    """
    if kind_of(dtype) == "c":
        real = np.zeros((), dtype).real.dtype
        return jax.lax.complex(*jax.random.uniform(key, (2, *shape), real))
    return jax.random.uniform(key, shape, dtype)


def _positive(key: Array, shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Numbers in (0, 1]."""
    return 1 - jax.random.uniform(key, shape, dtype)


def _float_for(dtype: DTypeLike) -> np.dtype:
    """The dtype to sample in for a result of `dtype`, which may be an integer."""
    return opmath(dtype) if kind_of(dtype) in "fc" else np.dtype(np.float32)


def _normal(
    key: Array, shape: Sequence[int], dtype: DTypeLike, mean: Operand, std: Operand
) -> Array:
    wide = opmath(dtype)
    return jax.random.normal(key, shape, wide) * cast(std, wide) + cast(mean, wide)


# -- uniform and normal ----------------------------------------------------------------------------


@lower("uniform", random=True)
def uniform(key: Array, self: Array, low: Operand = 0.0, high: Operand = 1.0) -> Array:
    wide = opmath(self.dtype)
    low, high = cast(low, wide), cast(high, wide)
    return _uniform(key, self.shape, self.dtype).astype(wide) * (high - low) + low


@factory("rand", "rand.generator", random=True)
def rand(key: Array, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return _uniform(key, size, dtype or default_dtype())


@factory("rand_like", "rand_like.generator", random=True)
def rand_like(key: Array, self: Array, dtype: np.dtype | None) -> Array:
    return _uniform(key, self.shape, dtype or self.dtype)


@lower("normal_", "normal_functional", random=True)
def normal(key: Array, self: Array, mean: Scalar = 0.0, std: Scalar = 1.0) -> Array:
    return _normal(key, self.shape, self.dtype, mean, std)


@lower("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", random=True)
def normal_of(key: Array, mean: Operand, std: Operand = 1.0) -> Array:
    arrays = [x for x in (mean, std) if isinstance(x, Array)]
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    return _normal(key, shape, arrays[0].dtype, mean, std)


@factory("normal.float_float", random=True)
def normal_sized(
    key: Array, mean: Scalar, std: Scalar, size: Sequence[int], dtype: np.dtype | None
) -> Array:
    return _normal(key, size, dtype or default_dtype(), mean, std)


@factory("randn", "randn.generator", random=True)
def randn(key: Array, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return jax.random.normal(key, size, opmath(dtype or default_dtype()))


@factory("randn_like", "randn_like.generator", random=True)
def randn_like(key: Array, self: Array, dtype: np.dtype | None) -> Array:
    return jax.random.normal(key, self.shape, opmath(dtype or self.dtype))


@lower("log_normal", random=True)
def log_normal(key: Array, self: Array, mean: Scalar = 1.0, std: Scalar = 2.0) -> Array:
    return jnp.exp(_normal(key, self.shape, self.dtype, mean, std))


# -- integers --------------------------------------------------------------------------------------


def _integers(key: Array, shape: Sequence[int], low: int, last: int) -> Array:
    """Integers from `low` to `last`, both included; 32 bits wide where the range allows."""
    info = np.iinfo(np.int64)
    if low == info.min and last == info.max:
        return jax.lax.bitcast_convert_type(jax.random.bits(key, shape, np.uint64), np.int64)
    if last == info.max:  # last + 1 would overflow
        return _integers(key, shape, low - 1, last - 1) + 1
    narrow = np.iinfo(np.int32)
    dtype = np.int32 if low >= narrow.min and last < narrow.max else np.int64
    return jax.random.randint(key, shape, low, last + 1, dtype)


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
def random(key: Array, self: Array) -> Array:
    return _integers(key, self.shape, 0, _largest(self.dtype))


@lower("random.from", random=True)
def random_from(key: Array, self: Array, low: int, high: int | None) -> Array:
    return _integers(
        key, self.shape, low, _largest(self.dtype) if high is None else _last(low, high)
    )


@lower("random.to", random=True)
def random_to(key: Array, self: Array, high: int) -> Array:
    return _integers(key, self.shape, 0, _last(0, high))


def _last(low: int, high: int) -> int:
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    return high - 1


@factory("randint", "randint.generator", random=True)
def randint(key: Array, high: int, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return _integers(key, size, 0, _last(0, high))


@factory("randint.low", "randint.low_generator", random=True)
def randint_low(
    key: Array, low: int, high: int, size: Sequence[int], dtype: np.dtype | None
) -> Array:
    return _integers(key, size, low, _last(low, high))


@factory("randint_like", "randint_like.generator", random=True)
def randint_like(key: Array, self: Array, high: int, dtype: np.dtype | None) -> Array:
    return _integers(key, self.shape, 0, _last(0, high))


@factory("randint_like.low_dtype", "randint_like.low_generator_dtype", random=True)
def randint_like_low(key: Array, self: Array, low: int, high: int, dtype: np.dtype | None) -> Array:
    return _integers(key, self.shape, low, _last(low, high))


@factory("randperm", "randperm.generator", random=True)
def randperm(key: Array, n: int, dtype: np.dtype | None) -> Array:
    return jax.random.permutation(key, jnp.arange(n, dtype=np.int32))


# -- choices ---------------------------------------------------------------------------------------


@lower("bernoulli", random=True)
def bernoulli(key: Array, self: Array) -> Array:
    return _flips(key, self.shape, self)


@lower("bernoulli.p", "bernoulli.Tensor", random=True)
def bernoulli_with(key: Array, self: Array, p: Operand = 0.5) -> Array:
    return _flips(key, self.shape, p)


def _flips(key: Array, shape: Sequence[int], p: Operand) -> Array:
    dtype = _float_for(p.dtype) if isinstance(p, Array) else np.dtype(np.float32)
    return jax.random.uniform(key, shape, dtype) < cast(p, dtype)


@lower("multinomial", random=True)
def multinomial(key: Array, self: Array, num_samples: int, replacement: bool = False) -> Array:
    if num_samples < 1 or self.shape[-1] > 1 << 24:
        raise ValueError("torch refuses this sample")
    (weights,) = widen(self)
    if not replacement:
        # The indices of the largest log(weight) + Gumbel noise are a sample without replacement.
        scores = jnp.log(weights) + jax.random.gumbel(key, weights.shape, weights.dtype)
        return jax.lax.top_k(scores, num_samples)[1]
    # Invert the distribution function. The bound excludes trailing categories of weight 0 if a point is rounded up.
    sums = jnp.cumsum(weights, -1)
    total = sums[..., -1:]
    points = jax.random.uniform(key, (*self.shape[:-1], num_samples), weights.dtype) * total

    def invert(row: Array, point: Array, total: Array) -> Array:
        return jnp.minimum(jnp.searchsorted(row, point, side="right"), jnp.searchsorted(row, total))

    for _ in range(self.ndim - 1):
        invert = jax.vmap(invert)
    return invert(sums, points, total)


# -- other distributions ---------------------------------------------------------------------------


@lower("exponential", random=True)
def exponential(key: Array, self: Array, lambd: Scalar = 1.0) -> Array:
    wide = _float_for(self.dtype)
    return -jnp.log(_positive(key, self.shape, wide)) / cast(lambd, wide)


@lower("geometric", random=True)
def geometric(key: Array, self: Array, p: Scalar) -> Array:
    wide = _float_for(self.dtype)
    trials = jnp.log(_positive(key, self.shape, wide)) / jnp.log1p(-cast(p, wide))
    return jnp.maximum(jnp.ceil(trials), 1)


@lower("cauchy", random=True)
def cauchy(key: Array, self: Array, median: Scalar = 0.0, sigma: Scalar = 1.0) -> Array:
    wide = opmath(self.dtype)
    return cast(median, wide) + cast(sigma, wide) * jax.random.cauchy(key, self.shape, wide)


@lower("poisson", random=True, meta=False)
def poisson(key: Array, self: Array) -> Array:
    return jax.random.poisson(key, widen(self)[0], dtype=np.int32).astype(self.dtype)


@lower("binomial", random=True, meta=False)
def binomial(key: Array, count: Array, prob: Array) -> Array:
    n, p = widen(count, prob)
    return jax.random.binomial(key, n, p).astype(count.dtype)


@lower("_standard_gamma", random=True, meta=False)
def standard_gamma(key: Array, self: Array) -> Array:
    (alpha,) = widen(self)
    return jax.random.gamma(key, alpha).astype(self.dtype)


@lower("_standard_gamma_grad")
def standard_gamma_grad(self: Array, output: Array) -> Array:
    alpha, sample = widen(self, output)
    return jax.lax.random_gamma_grad(alpha, sample).astype(self.dtype)


@lower("_sample_dirichlet", random=True, meta=False)
def sample_dirichlet(key: Array, self: Array) -> Array:
    (alpha,) = widen(self)
    return jax.random.dirichlet(key, alpha).astype(self.dtype)
