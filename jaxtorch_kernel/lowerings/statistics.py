"""Variance, standard deviation, logsumexp and hashes over dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .nondifferentiable import mean_square
from .promote import cast, kind_of, promote_float, widen
from .reductions import axes_of, count_of, root, squared
from .registry import lower
from .types import Array, Dims, Operand, Pair, Scalar


@lower("var_mean.correction")
def var_mean(
    self: Array, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> Pair:
    (x,) = widen(self)
    axes = axes_of(x, dim)
    count = count_of(x, axes)
    mean = jnp.sum(x, axes, keepdims=True) / np.asarray(count, x.dtype)
    freedom = count - cast(1 if correction is None else correction, mean.real.dtype)
    freedom = jnp.maximum(freedom, 0)
    if kind_of(x.dtype) == "c":
        variance = jnp.sum(squared(x - mean), axes, keepdims=True) / freedom
    else:
        variance = mean_square(x, freedom, axes)
    return (variance, mean) if keepdim else (variance.squeeze(axes), mean.squeeze(axes))


@lower("var.correction")
def var(
    self: Array, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> Array:
    return var_mean(self, dim, correction, keepdim)[0]


@lower("std.correction")
def std(
    self: Array, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> Array:
    return root(var(self, dim, correction, keepdim))


@lower("std_mean.correction")
def std_mean(
    self: Array, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> Pair:
    variance, mean = var_mean(self, dim, correction, keepdim)
    return root(variance), mean


@lower("logsumexp")
def logsumexp(self: Operand, dim: Dims, keepdim: bool = False) -> Array:
    (x,) = widen(*promote_float(self))
    axes = axes_of(x, dim)
    largest = jnp.max(x.real, axes, keepdims=True, initial=-np.inf)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0))
    total = jnp.log(jnp.sum(jnp.exp(x - largest), axes, keepdims=True)) + largest
    return total if keepdim else total.squeeze(axes)


@lower("hash_tensor")
def hash_tensor(self: Array, dim: Dims = (), keepdim: bool = False, mode: int = 0) -> Array:
    """The exclusive or of the 64-bit patterns of all elements, with floats converted to float64."""
    if kind_of(self.dtype) == "f":
        bits = jax.lax.bitcast_convert_type(self.astype(np.float64), np.uint64)
    else:
        bits = self.astype(np.uint64)
    axes = axes_of(self, dim)
    folded = jax.lax.reduce(bits, np.uint64(0), jax.lax.bitwise_xor, axes)
    return jnp.expand_dims(folded, axes) if keepdim else folded
