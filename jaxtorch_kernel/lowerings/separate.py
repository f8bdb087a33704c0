"""A workaround for XLA on the CPU: https://github.com/openxla/xla/issues/49176.

A write to a part of an array is `dynamic_update_slice`. XLA computes it in place, together with what computes the
update. If the update reads other elements of the same array (`a[1:] = a[:-1].clone()`), the loop may read elements that
it has already overwritten. XLA forbids this where it sees it, but a reshape in between hides it.

So an update that may depend on the array is computed first, into memory of its own. XLA does not fuse across a
conditional, and the barrier keeps it from deciding the condition.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def separate(value: jax.Array) -> jax.Array:
    """The value, in memory of its own where XLA compiles for the CPU.

    Example:
        >>> import jax.numpy as jnp
        >>> separate(jnp.arange(3)).tolist()
        [0, 1, 2]
    """
    result: jax.Array = lax.platform_dependent(value, cpu=_stored, default=_same)
    return result


def _stored(value: jax.Array) -> jax.Array:
    always = lax.optimization_barrier(jnp.bool_(True))
    result: jax.Array = lax.cond(always, _same, jnp.zeros_like, value)
    return result


def _same(value: jax.Array) -> jax.Array:
    return value
