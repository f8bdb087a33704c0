"""Elementwise operators: arithmetic, comparison, activation."""

from __future__ import annotations

from typing import Any

import jax

from .promote import cast
from .registry import lower


@lower("normal_", random=True)
def normal_(key: Any, self: Any, mean: Any, std: Any) -> jax.Array:
    return jax.random.normal(key, self.shape, self.dtype) * cast(std, self.dtype) + cast(
        mean, self.dtype
    )
