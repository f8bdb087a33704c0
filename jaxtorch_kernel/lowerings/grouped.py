"""Grouped products: one matrix for each group of rows, as a mixture of experts multiplies its tokens.

`offs` holds the end of each group. Rows beyond the last group are 0; torch leaves them undefined.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..storage.dtypes import to_numpy
from .matmul import product
from .registry import lower

# [m, k] with [k, n], the groups along k.
_ALONG_THE_SUM = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (0,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[],
)


# Meta has CUDA's conditions (bfloat16 alone, strides of whole 16 bytes), which the CPU has not.
@lower("_grouped_mm", meta=False)
def grouped_mm(
    self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> jax.Array:
    result = product(self, mat2) if offs is None else _grouped(self, mat2, offs)
    return result.astype(self.dtype if out_dtype is None else to_numpy(out_dtype))


def _grouped(self: Any, mat2: Any, ends: Any) -> jax.Array:
    # In the operands' dtype: XLA's CPU has no grouped product of halves summed in float32.
    sizes = jnp.diff(ends, prepend=np.zeros(1, ends.dtype)).astype(np.int32)
    if self.ndim == 2 and mat2.ndim == 3:
        return lax.ragged_dot(self, mat2, sizes)
    if self.ndim == 3:
        return lax.ragged_dot(mat2.T, self.mT, sizes).T
    return _along_the_sum(self, mat2, sizes)


@jax.custom_vjp
def _along_the_sum(a: Any, b: Any, sizes: Any) -> jax.Array:
    return lax.ragged_dot_general(a, b, sizes, _ALONG_THE_SUM)


def _forward(a: Any, b: Any, sizes: Any) -> Any:
    return _along_the_sum(a, b, sizes), (a, b, sizes)


def _backward(saved: Any, gradient: Any) -> Any:  # which JAX has not
    a, b, sizes = saved
    return lax.ragged_dot(b, gradient.mT, sizes).T, lax.ragged_dot(a.T, gradient, sizes), None


_along_the_sum.defvjp(_forward, _backward)
