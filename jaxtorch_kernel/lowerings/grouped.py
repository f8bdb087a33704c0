"""Grouped products: each group of rows is multiplied by its own matrix, as in a mixture of experts.

`offs` holds the end of each group. Rows after the last group are 0; torch leaves them undefined.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..storage.dtypes import to_numpy
from .matmul import product
from .registry import lower
from .types import Array

# [m, k] with [k, n], the groups along k.
_ALONG_THE_SUM = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (0,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[],
)


# torch's Meta kernel has CUDA's conditions (only bfloat16, strides of multiples of 16 bytes), which the CPU has not.
@lower("_grouped_mm", meta=False)
def grouped_mm(
    self: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> Array:
    result = product(self, mat2) if offs is None else _grouped(self, mat2, offs)
    return result.astype(self.dtype if out_dtype is None else to_numpy(out_dtype))


def _grouped(self: Array, mat2: Array, ends: Array) -> Array:
    # Accumulated in the operands' dtype: on the CPU, XLA has no grouped product of half types with float32 sums.
    sizes = jnp.diff(ends, prepend=np.zeros(1, ends.dtype)).astype(np.int32)
    if self.ndim == 2 and mat2.ndim == 3:
        return _ragged_dot(self, mat2, sizes)
    if self.ndim == 3:
        return _ragged_dot(mat2.T, self.mT, sizes).T
    return _along_the_sum(self, mat2, sizes)


def _ragged_dot(a: Array, b: Array, sizes: Array) -> Array:
    return lax.ragged_dot(a, b, sizes, precision=_precision(a))


def _precision(a: Array) -> lax.Precision | None:
    """The default for numbers of 16 bits and fewer, which need no other; libtpu compiles no other for them."""
    return lax.Precision.DEFAULT if a.dtype.itemsize <= 2 else None


@jax.custom_vjp
def _along_the_sum(a: Array, b: Array, sizes: Array) -> Array:
    return lax.ragged_dot_general(a, b, sizes, _ALONG_THE_SUM, precision=_precision(a))


def _forward(a: Array, b: Array, sizes: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _along_the_sum(a, b, sizes), (a, b, sizes)


def _backward(saved: tuple[Array, Array, Array], grad: Array) -> tuple[Array, Array, None]:
    """The gradient of a product with groups along the sum, which JAX does not have."""
    a, b, sizes = saved
    return _ragged_dot(b, grad.mT, sizes).T, _ragged_dot(a.T, grad, sizes), None


_along_the_sum.defvjp(_forward, _backward)
