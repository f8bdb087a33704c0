"""Products of matrices and vectors.

Everything here uses one contraction, `product`: half types are multiplied directly and accumulated in
float32, so that the dispatch rounds a result only once, after the scaled sum of `addmm`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .promote import Number, cast, opmath
from .registry import lower

# torch's Meta kernels let two dtypes pass, its others name them like this.
_C_NAMES = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
    "int64": "long",
    "int32": "int",
}


def product(a: jax.Array, b: jax.Array, dtype: Any = None) -> jax.Array:
    """`a @ b` summed and returned in `dtype`, by default the opmath dtype of both."""
    if dtype is None and a.dtype != b.dtype:
        names = " != ".join(_C_NAMES.get(x.dtype.name, x.dtype.name) for x in (a, b))
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {names}")
    return jnp.matmul(a, b, preferred_element_type=dtype or opmath(a.dtype))


def _scaled(x: jax.Array, factor: Any) -> jax.Array:
    """`factor * x`, where a factor known to be one costs nothing."""
    if not isinstance(factor, Number) and factor == 1:
        return x
    return cast(factor, x.dtype) * x


def _kept(self: jax.Array, beta: Any) -> jax.Array:
    """`beta * self`; `beta` 0 forgets even a NaN."""
    kept = _scaled(self, beta)
    if isinstance(beta, Number):
        kept = jnp.where(cast(beta, self.dtype) == 0, jnp.zeros_like(kept), kept)
    return kept


def accumulate(self: jax.Array, update: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    """`beta * self + alpha * update` in the dtype of `update`."""
    return _kept(self.astype(update.dtype), beta) + _scaled(update, alpha)


def _rounded(x: jax.Array) -> jax.Array:
    """`x` with a half type's precision, which XLA would keep wider between fused operations."""
    if opmath(x.dtype) == x.dtype:
        return x
    info = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(x, info.nexp, info.nmant)


@lower("mm", "bmm", "mv", "dot")
def mm(self: Any, mat2: Any) -> jax.Array:
    return product(self, mat2)


@lower("mm.dtype", "bmm.dtype")
def mm_dtype(self: Any, mat2: Any, out_dtype: Any) -> jax.Array:
    return product(self, mat2)


@lower("vdot")
def vdot(self: Any, other: Any) -> jax.Array:
    return product(self.conj(), other)


@lower("addmm", "baddbmm", "addmv")
def addmm(self: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    if self.ndim > mat1.ndim:
        raise ValueError("the sum would have more dimensions than the product")
    return accumulate(self, product(mat1, mat2), beta, alpha)


@lower("addmm.dtype", "baddbmm.dtype")
def addmm_dtype(
    self: Any, mat1: Any, mat2: Any, out_dtype: Any, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    return accumulate(self, product(mat1, mat2), beta, alpha)


@lower("addbmm")
def addbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    dtype = opmath(batch1.dtype)
    total = jnp.einsum("bij,bjk->ik", batch1, batch2, preferred_element_type=dtype)
    return accumulate(self, total, beta, alpha)


@lower("addr")
def addr(self: Any, vec1: Any, vec2: Any, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    dtype = np.dtype(jnp.result_type(self.dtype, vec1.dtype, vec2.dtype))
    if dtype.kind == "b":
        return _addr_bool(self, vec1, vec2, beta, alpha)
    vec1, vec2 = vec1.astype(dtype), vec2.astype(dtype)
    # torch rounds each step of this one to the half type.
    update = _rounded(_rounded(_scaled(vec1, alpha))[:, None] * vec2)
    return _rounded(_kept(self.astype(dtype), beta)) + update


def _addr_bool(self: Any, vec1: Any, vec2: Any, beta: Any, alpha: Any) -> jax.Array:
    outer = vec1[:, None] & vec2
    return (self & cast(beta, np.dtype(bool))) | (outer & cast(alpha, np.dtype(bool)))


@lower("_addmm_activation")
def addmm_activation(
    self: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> jax.Array:
    result = accumulate(self, product(mat1, mat2), beta, alpha)
    return jax.nn.gelu(result, approximate=False) if use_gelu else jnp.maximum(result, 0)


@lower("_int_mm")
def int_mm(self: Any, mat2: Any) -> jax.Array:
    return product(self, mat2, jnp.int32)


@lower("_scaled_mm")
def scaled_mm(
    self: Any,
    mat2: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    """float8 matrices with one scale each, or one for each row of `self` and column of `mat2`."""
    result = product(self, mat2, jnp.float32) * scale_a * scale_b
    if bias is not None:
        result = result + bias.astype(jnp.float32)
    if scale_result is not None and out_dtype.itemsize == 1:
        result = result / scale_result
    return result


@lower("_weight_int8pack_mm")
def weight_int8pack_mm(self: Any, mat2: Any, scales: Any) -> jax.Array:
    """A linear layer whose int8 weights have one scale for each output feature."""
    return product(self, mat2.T.astype(self.dtype)) * scales


@lower("_trilinear")
def trilinear(
    i1: Any,
    i2: Any,
    i3: Any,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> jax.Array:
    """The sum over `sumdim` of the product of three tensors, each broadcast along its `expand`."""
    rank = i1.ndim + len(expand1)

    def without(dims: list[int]) -> list[int]:
        return [d for d in range(rank) if d not in dims]

    dtype = opmath(i1.dtype)
    operands = (i1, without(expand1), i2, without(expand2), i3, without(expand3))
    return jnp.einsum(*operands, without(sumdim), preferred_element_type=dtype)
