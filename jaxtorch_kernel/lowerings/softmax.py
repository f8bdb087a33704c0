"""Softmax, its logarithm, and the variants with a mask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .promote import cast, in_opmath
from .registry import lower


def softmax_along(self: jax.Array, dim: int) -> jax.Array:
    """Softmax, of tensors without dimensions or elements too."""
    if self.ndim == 0:
        return jnp.ones_like(self)
    if self.size == 0:
        return self
    return jax.nn.softmax(self, dim)


@lower("_softmax")
@in_opmath
def softmax(self: Any, dim: int, half_to_float: bool) -> jax.Array:
    return softmax_along(self, dim)


@lower("_log_softmax")
@in_opmath
def log_softmax(self: Any, dim: int, half_to_float: bool) -> jax.Array:
    if self.ndim == 0:
        return jnp.zeros_like(self)
    return jax.nn.log_softmax(self, dim) if self.size else self


@lower("_safe_softmax")
@in_opmath
def safe_softmax(self: Any, dim: int, dtype: Any = None) -> jax.Array:
    """Softmax that gives zeros, not NaN, where a whole row is -inf."""
    if dtype is not None:
        self = cast(self, dtype)
    if self.ndim == 0 or self.size == 0:
        return softmax_along(self, dim)
    empty = jnp.all(self == -jnp.inf, dim, keepdims=True)
    # Of zeros in such a row: what is thrown away afterwards must not be NaN, or the gradient is.
    return jnp.where(empty, 0, softmax_along(jnp.where(empty, 0, self), dim))


def _sum(x: jax.Array, dim: int) -> jax.Array:
    return jnp.sum(x, dim, keepdims=True) if x.ndim else x


@lower("_softmax_backward_data")
@in_opmath
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> jax.Array:
    product = grad_output * output
    return product - output * _sum(product, dim)


@lower("_log_softmax_backward_data")
@in_opmath
def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> jax.Array:
    return grad_output - jnp.exp(output) * _sum(grad_output, dim)


def _expanded_mask(mask: jax.Array, shape: tuple[int, ...], mask_type: int | None) -> jax.Array:
    # The two short forms of scaled_dot_product_attention: (L, L) over scores, and (B, L) over padded keys.
    if mask_type == 0 and mask.ndim == 2:
        mask = mask[None, None]
    elif mask_type == 1 and mask.ndim == 2:
        mask = mask[:, None, None, :]
    return jnp.broadcast_to(mask, shape)


@lower("_masked_softmax")
@in_opmath
def masked_softmax(
    self: Any, mask: Any, dim: int | None = None, mask_type: int | None = None
) -> jax.Array:
    dim = self.ndim - 1 if dim is None else dim
    mask = _expanded_mask(mask, self.shape, mask_type)
    # NaN where all is masked, as on the CPU and on cuda.
    return softmax_along(jnp.where(mask, -jnp.inf, self), dim)


@lower("_masked_softmax_backward")
@in_opmath
def masked_softmax_backward(
    grad_output: Any, output: Any, mask: Any, dim: int | None = None
) -> jax.Array:
    if mask.shape != output.shape:
        raise ValueError("Mask shape should match grad shape")
    dim = output.ndim - 1 if dim is None else dim
    product = jnp.where(mask, 0, grad_output * output)
    return jnp.where(mask, 0, product - output * _sum(product, dim))
