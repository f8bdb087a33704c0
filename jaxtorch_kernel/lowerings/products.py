"""Scattered products with repeated indices, whose derivative JAX provides only for unique indices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .indexing import EXACT


def multiply_at(
    x: Any, place: tuple[Any, ...], rows: Any, how: dict[str, Any] = EXACT
) -> jax.Array:
    """`x.at[place].multiply(rows, **how)` with a gradient, zeros among the factors or not.

    Args:
        place: a subscript of slices and integer arrays; `x[place]` and `rows` have one shape.
    """
    arrays = [p for p in place if not isinstance(p, slice)]

    def subscript(arrays: list[Any]) -> tuple[Any, ...]:
        own = iter(arrays)
        return tuple(p if isinstance(p, slice) else next(own) for p in place)

    @jax.custom_vjp
    def product(x: Any, rows: Any, arrays: list[Any]) -> jax.Array:
        return x.at[subscript(arrays)].multiply(rows, **how)

    def save(x: Any, rows: Any, arrays: list[Any]) -> Any:
        return product(x, rows, arrays), (x, rows, arrays)

    def pull_back(saved: Any, given: Any) -> Any:
        x, rows, arrays = saved
        at = subscript(arrays)

        def here(values: Any) -> jax.Array:
            return values.at[at].get(mode="fill", fill_value=0, wrap_negative_indices=False)

        zero = rows == 0
        rest = jnp.ones_like(x).at[at].multiply(jnp.where(zero, 1, rows), **how)
        zeros = jnp.zeros_like(x).at[at].add(zero.astype(x.dtype), **how)
        others = jnp.where(here(zeros) - zero > 0, 0, here(rest) / jnp.where(zero, 1, rows))
        return given * jnp.where(zeros > 0, 0, rest), here(given * x) * others, None

    product.defvjp(save, pull_back)
    return product(x, rows, arrays)
