"""Vector norms, and the distances between rows that are based on them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..storage.dtypes import to_numpy
from .nondifferentiable import magnitude
from .promote import cast, convert, widen
from .reductions import axes_of, root, squared
from .registry import lower
from .sorting import search
from .types import Array, Dims, Scalar


def vector_norm(x: Array, p: float, axes: Sequence[int], keepdims: bool = False) -> Array:
    """The p-norm over some axes, for real and infinite p."""
    size = magnitude(x)
    if p == 0:
        return jnp.sum(size != 0, axes, keepdims=keepdims).astype(size.dtype)
    if p == 1:
        return jnp.sum(size, axes, keepdims=keepdims)
    if p == 2:
        return root(jnp.sum(squared(x), axes, keepdims=keepdims))
    if p == np.inf:
        return jnp.max(size, axes, keepdims=keepdims, initial=0)
    if p == -np.inf:
        return jnp.min(size, axes, keepdims=keepdims, initial=np.inf)
    zero = size == 0  # where the gradient of the power has no limit, and torch defines it as 0
    power = jnp.where(zero, 0 if p > 0 else np.inf, jnp.where(zero, 1, size) ** p)
    total = jnp.sum(power, axes, keepdims=keepdims)
    return root(total, p) if p > 0 else total ** (1 / p)


@lower("linalg_vector_norm", static=("ord",))
def linalg_vector_norm(
    self: Array,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Array:
    if dtype is not None:
        self = convert(self, to_numpy(dtype))
    return vector_norm(widen(self)[0], ord, axes_of(self, dim), keepdim)


@lower("norm.ScalarOpt_dim_dtype", static=("p",))
def norm(
    self: Array, p: float | None, dim: Dims, keepdim: bool, dtype: torch.dtype | None = None
) -> Array:
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype)


@lower("norm.ScalarOpt_dim", static=("p",))
def norm_dim(self: Array, p: float | None, dim: Dims, keepdim: bool = False) -> Array:
    return norm(self, p, dim, keepdim)


@lower("norm.ScalarOpt_dtype", static=("p",))
def norm_dtype(self: Array, p: float | None, dtype: torch.dtype) -> Array:
    return norm(self, p, None, False, dtype)


@lower("norm.Scalar", static=("p",))
def norm_all(self: Array, p: float = 2) -> Array:
    return norm(self, p, None, False)


@lower("renorm", static=("p",))
def renorm(self: Array, p: float, dim: int, maxnorm: Scalar) -> Array:
    (x,) = widen(self)
    axes = [a for a in range(x.ndim) if a != dim % x.ndim]
    norms = vector_norm(x, p, axes, True)
    limit = cast(maxnorm, norms.dtype)
    return x * jnp.where(norms > limit, limit / (norms + 1e-7), 1)


# -- distances -------------------------------------------------------------------------------------


def distance_gradient(p: float, difference: Array, distance: Array) -> Array:
    """The gradient of the p-norm of a difference; 0 where torch chooses a subgradient of 0."""
    if p == 0:
        return jnp.zeros_like(difference)
    size, sign = jnp.abs(difference), jnp.sign(difference)
    if p == 1:
        return sign
    if p == np.inf:
        return sign * (size == distance)
    if p < 1:
        derivative = sign * size ** (p - 1) * distance ** (1 - p)
        return jnp.where((size == 0) | (distance == 0), 0, derivative)
    if p == 2:
        derivative = difference / distance
    elif p < 2:
        derivative = sign * size ** (p - 1) * distance ** (1 - p)
    else:
        derivative = difference * size ** (p - 2) / distance ** (p - 1)
    return jnp.where(distance == 0, 0, derivative)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def distance(difference: Array, p: float) -> Array:
    """The p-norm along the last axis, with torch's derivative of distances, which differs from that of norms."""
    return vector_norm(difference, p, (-1,))


@distance.defjvp
def _distance_derivative(
    p: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (difference,), (tangent,) = primals, tangents
    result = distance(difference, p)
    derivative = distance_gradient(p, difference, result[..., None])
    return result, jnp.sum(derivative * tangent, -1)


@lower("_euclidean_dist")
def euclidean_dist(x1: Array, x2: Array) -> Array:
    """Euclidean distances from one matrix product, as torch computes them for more than 25 rows."""
    squares = [jnp.sum(x * x, -1, keepdims=True) for x in (x1, x2)]
    product = x1 @ jnp.swapaxes(x2, -1, -2)
    total = squares[0] + jnp.swapaxes(squares[1], -1, -2) - 2 * product
    return root(jnp.maximum(total, 0))


@lower("_cdist_forward", static=("p",))
def cdist(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    many = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p == 2 and (compute_mode == 1 or (many and compute_mode in (None, 0))):
        return euclidean_dist(x1, x2)
    return distance(x1[..., :, None, :] - x2[..., None, :, :], p)


@lower("_cdist_backward", static=("p",))
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array) -> Array:
    if not grad.size:
        return jnp.zeros_like(x1)
    difference = x1[..., :, None, :] - x2[..., None, :, :]
    derivative = distance_gradient(p, difference, cdist[..., None])
    return jnp.sum(grad[..., None] * derivative, -2)


def _pairs(n: int) -> tuple[Array, Array]:
    """The rows i < j of each pair, in the order of an upper triangle, computed without a constant of n² numbers."""
    row = jnp.arange(n, dtype=np.int32)
    starts = row * (2 * n - row - 1) // 2
    pair = jnp.arange(n * (n - 1) // 2, dtype=np.int32)
    i = search(starts, pair, True) - 1
    return i, pair - starts[i] + i + 1


@lower("_pdist_forward", static=("p",))
def pdist(self: Array, p: float = 2.0) -> Array:
    i, j = _pairs(self.shape[0])
    return distance(self[i] - self[j], p)


@lower("_pdist_backward", static=("p",))
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    i, j = _pairs(self.shape[0])
    derivative = grad[:, None] * distance_gradient(p, self[i] - self[j], pdist[:, None])
    return jnp.zeros_like(self).at[i].add(derivative).at[j].add(-derivative)
