"""What the tests of torch calls compare: arrays to start from, and trees that must be the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from jaxtorch import dtype_t2j

TOLERANCE = {jnp.float32: 1e-5, jnp.float64: 1e-12}
FLOATS = list(TOLERANCE)


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """The same structure, dtypes and values."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert isinstance(a, jax.Array)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def like(x: Any) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(x.shape, dtype_t2j(x.dtype))
