"""Softmax, its logarithm, and the variants with a mask."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from ..storage.dtypes import to_numpy
from .promote import convert, in_opmath
from .registry import lower
from .types import Array


def softmax_along(self: Array, dim: int) -> Array:
    """Softmax, also for tensors without dimensions or without elements."""
    if self.ndim == 0:
        return jnp.ones_like(self)
    if self.size == 0:
        return self
    return jax.nn.softmax(self, dim)


@lower("_softmax")
@in_opmath
def softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    return softmax_along(self, dim)


@lower("_log_softmax")
@in_opmath
def log_softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    if self.ndim == 0:
        return jnp.zeros_like(self)
    return jax.nn.log_softmax(self, dim) if self.size else self


@lower("_safe_softmax")
@in_opmath
def safe_softmax(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    """Softmax whose result is 0, not NaN, in rows that are entirely -inf."""
    if dtype is not None:
        self = convert(self, to_numpy(dtype))
    if self.ndim == 0 or self.size == 0:
        return softmax_along(self, dim)
    empty = jnp.all(self == -jnp.inf, dim, keepdims=True)
    # In such rows, take the softmax of zeros: a NaN there would make the gradient NaN although it is discarded.
    return jnp.where(empty, 0, softmax_along(jnp.where(empty, 0, self), dim))


def _sum(x: Array, dim: int) -> Array:
    return jnp.sum(x, dim, keepdims=True) if x.ndim else x


@lower("_softmax_backward_data")
@in_opmath
def softmax_backward(
    grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype
) -> Array:
    product = grad_output * output
    return product - output * _sum(product, dim)


@lower("_log_softmax_backward_data")
@in_opmath
def log_softmax_backward(
    grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype
) -> Array:
    return grad_output - jnp.exp(output) * _sum(grad_output, dim)


def _expanded_mask(mask: Array, shape: tuple[int, ...], mask_type: int | None) -> Array:
    # The two short forms that scaled_dot_product_attention accepts: (L, L) for scores, and (B, L) for padded keys.
    if mask_type == 0 and mask.ndim == 2:
        mask = mask[None, None]
    elif mask_type == 1 and mask.ndim == 2:
        mask = mask[:, None, None, :]
    return jnp.broadcast_to(mask, shape)


@lower("_masked_softmax")
@in_opmath
def masked_softmax(
    self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None
) -> Array:
    dim = self.ndim - 1 if dim is None else dim
    mask = _expanded_mask(mask, self.shape, mask_type)
    # As on the CPU and cuda, the result is NaN where a row is fully masked.
    return softmax_along(jnp.where(mask, -jnp.inf, self), dim)


@lower("_masked_softmax_backward")
@in_opmath
def masked_softmax_backward(
    grad_output: Array, output: Array, mask: Array, dim: int | None = None
) -> Array:
    if mask.shape != output.shape:
        raise ValueError("Mask shape should match grad shape")
    dim = output.ndim - 1 if dim is None else dim
    product = jnp.where(mask, 0, grad_output * output)
    return jnp.where(mask, 0, product - output * _sum(product, dim))
