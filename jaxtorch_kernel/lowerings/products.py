"""Scattered products with repeated indices; JAX differentiates them only for unique indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .indexing import EXACT, IndexMode
from .types import Array, Arrays, Subscript


def multiply_at(x: Array, subscript: Subscript, rows: Array, mode: IndexMode = EXACT) -> Array:
    """`x.at[subscript].multiply(rows, **mode)` with a gradient that is right even if some factors are 0.

    Args:
        subscript: slices and integer arrays; `x[subscript]` and `rows` have the same shape.
    """
    if x.dtype == np.bool_:  # their product is the logical and
        return x.at[subscript].min(rows, **mode)
    indices = [i for i in subscript if not isinstance(i, slice)]

    def with_indices(indices: Arrays) -> Subscript:
        remaining = iter(indices)
        return tuple(i if isinstance(i, slice) else next(remaining) for i in subscript)

    @jax.custom_vjp
    def product(x: Array, rows: Array, indices: Arrays) -> Array:
        return x.at[with_indices(indices)].multiply(rows, **mode)

    def save(x: Array, rows: Array, indices: Arrays) -> tuple[Array, tuple[Array, Array, Arrays]]:
        return product(x, rows, indices), (x, rows, indices)

    def pull_back(saved: tuple[Array, Array, Arrays], grad: Array) -> tuple[Array, Array, None]:
        x, rows, indices = saved
        at = with_indices(indices)

        def read(values: Array) -> Array:
            return values.at[at].get(mode="fill", fill_value=0, wrap_negative_indices=False)

        zero = rows == 0
        nonzero_product = jnp.ones_like(x).at[at].multiply(jnp.where(zero, 1, rows), **mode)
        zeros = jnp.zeros_like(x).at[at].add(zero.astype(x.dtype), **mode)
        # For each factor, the product of the other factors of its element.
        others = read(nonzero_product) / jnp.where(zero, 1, rows)
        others = jnp.where(read(zeros) - zero > 0, 0, others)
        return grad * jnp.where(zeros > 0, 0, nonzero_product), read(grad * x) * others, None

    product.defvjp(save, pull_back)
    return product(x, rows, indices)
