"""Functions with a kink, where captured code has torch's derivative: JAX's is 1 for |x| at 0, and a half at bounds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def magnitude(x: Any) -> jax.Array:
    """|x|, whose slope at 0 is 0."""
    return jnp.abs(x)


@magnitude.defjvp
def _slope(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
    (x,), (change,) = primals, tangents
    if jnp.iscomplexobj(x):
        return jax.jvp(jnp.abs, primals, tangents)
    return jnp.abs(x), jnp.sign(x) * change


def at_least(x: Any, bound: Any) -> jax.Array:
    """max(x, bound), NaN where either is; at the bound the slope is x's."""
    return jnp.where((x < bound) | (bound != bound), bound, x)


def at_most(x: Any, bound: Any) -> jax.Array:
    """min(x, bound), likewise."""
    return jnp.where((x > bound) | (bound != bound), bound, x)
