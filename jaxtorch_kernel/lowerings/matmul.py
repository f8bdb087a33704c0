"""Products of matrices and vectors.

Everything here uses one contraction, `product`. It multiplies half types directly and accumulates in float32, so that
the dispatch rounds a result only once, after the scaled sum of `addmm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike

from ..storage.dtypes import row_of
from .promote import cast, opmath
from .registry import lower
from .types import Array, Number, Operand, Scalar
from .vjp import vjp


def product(a: Array, b: Array, dtype: DTypeLike | None = None) -> Array:
    """`a @ b`, accumulated and returned in `dtype` (by default the opmath dtype of both)."""
    if dtype is None and a.dtype != b.dtype:
        # torch's kernels raise this error, its Meta kernels do not.
        names = " != ".join(row.c_name for x in (a, b) if (row := row_of(x.dtype)) is not None)
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {names}")
    if dtype is not None:
        return jnp.matmul(a, b, preferred_element_type=dtype)
    return contracted(jnp.matmul, a, b)


def contracted(contract: Callable[..., Array], *factors: Array) -> Array:
    """A contraction, accumulated and returned in the opmath dtype of its factors.

    Its gradients are contractions of factors' dtypes, too. JAX would multiply a gradient in float32 with a half type:
    on a TPU that takes several passes, and a copy in float32 of each gradient.

    Args:
        contract: a function of the factors that is linear in each, with `preferred_element_type`, such as `jnp.matmul`.
    """
    dtype = factors[0].dtype
    wide = opmath(dtype)
    if wide == dtype or any(f.dtype != dtype for f in factors):
        return contract(*factors, preferred_element_type=wide)

    @jax.custom_jvp
    def of_halves(*factors: Array) -> Array:
        return contract(*factors, preferred_element_type=wide)

    def tangent_of(
        primals: Sequence[Array], tangents: Sequence[Array | SymbolicZero]
    ) -> tuple[Array, Array]:
        result = of_halves(*primals)
        total = jnp.zeros_like(result)
        for i, tangent in enumerate(tangents):
            if not isinstance(tangent, SymbolicZero):
                own = (*primals[:i], tangent, *primals[i + 1 :])
                total += contract(*own, preferred_element_type=dtype).astype(wide)
        return result, total

    of_halves.defjvp(tangent_of, symbolic_zeros=True)
    return of_halves(*factors)


def _scaled(x: Array, factor: Operand) -> Array:
    """`factor * x`; no multiplication if the factor is known to be 1."""
    if not isinstance(factor, Number) and factor == 1:
        return x
    return cast(factor, x.dtype) * x


def _addend(self: Array, beta: Scalar) -> Array:
    """`beta * self`, which is 0 if `beta` is 0, even where `self` is NaN."""
    scaled = _scaled(self, beta)
    if isinstance(beta, Number):
        scaled = jnp.where(cast(beta, self.dtype) == 0, jnp.zeros_like(scaled), scaled)
    return scaled


def accumulate(self: Array, update: Array, beta: Scalar, alpha: Scalar) -> Array:
    """`beta * self + alpha * update` in the dtype of `update`."""
    return _addend(self.astype(update.dtype), beta) + _scaled(update, alpha)


def _rounded(x: Array) -> Array:
    """`x` rounded to the precision of its half type; XLA would keep a higher precision between fused operations."""
    if opmath(x.dtype) == x.dtype:
        return x
    info = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(x, info.nexp, info.nmant)


@lower("mm", "bmm", "mv", "dot")
def mm(self: Array, mat2: Array) -> Array:
    return product(self, mat2)


@lower("linear")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """One contraction of the last dimensions: a reshape of the others would gather a sharded dimension."""
    result = product(input, weight.T)
    return result if bias is None else result + bias.astype(result.dtype)


@lower("linear_backward", meta=False)
def linear_backward(
    self: Array, grad_output: Array, weight: Array, output_mask: list[bool]
) -> tuple[Array | None, ...]:
    """The gradients of input, weight and bias that are wanted."""
    gradients = _gradients(linear, (self, weight), grad_output, output_mask)
    batch = tuple(range(self.ndim - 1))
    bias = grad_output.sum(batch, dtype=opmath(grad_output.dtype)).astype(grad_output.dtype)
    return (*gradients, bias if output_mask[2] else None)


@lower("matmul")
def matmul(self: Array, other: Array) -> Array:
    return product(self, other)


@lower("matmul_backward", meta=False)
def matmul_backward(
    grad: Array, self: Array, other: Array, mask: list[bool]
) -> tuple[Array | None, ...]:
    """The gradients that are wanted."""
    return _gradients(product, (self, other), grad, mask)


def _gradients(
    function: Callable[..., Array], factors: tuple[Array, Array], grad: Array, mask: Sequence[bool]
) -> tuple[Array | None, ...]:
    both = vjp(function, factors, grad)
    return tuple(g if wanted else None for g, wanted in zip(both, mask, strict=False))


@lower("mm.dtype", "bmm.dtype")
def mm_dtype(self: Array, mat2: Array, out_dtype: torch.dtype) -> Array:
    return product(self, mat2)


@lower("vdot")
def vdot(self: Array, other: Array) -> Array:
    return product(self.conj(), other)


@lower("addmm", "baddbmm", "addmv")
def addmm(self: Array, mat1: Array, mat2: Array, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    if self.ndim > mat1.ndim:
        raise ValueError("the input has more dimensions than the product")
    return accumulate(self, product(mat1, mat2), beta, alpha)


@lower("addmm.dtype", "baddbmm.dtype")
def addmm_dtype(
    self: Array,
    mat1: Array,
    mat2: Array,
    out_dtype: torch.dtype,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> Array:
    return accumulate(self, product(mat1, mat2), beta, alpha)


@lower("addbmm")
def addbmm(self: Array, batch1: Array, batch2: Array, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    total = contracted(partial(jnp.einsum, "bij,bjk->ik"), batch1, batch2)
    return accumulate(self, total, beta, alpha)


@lower("addr")
def addr(self: Array, vec1: Array, vec2: Array, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    dtype = np.dtype(jnp.result_type(self.dtype, vec1.dtype, vec2.dtype))
    if dtype.kind == "b":
        return _addr_bool(self, vec1, vec2, beta, alpha)
    vec1, vec2 = vec1.astype(dtype), vec2.astype(dtype)
    # torch rounds each step of this operator to the half type.
    update = _rounded(_rounded(_scaled(vec1, alpha))[:, None] * vec2)
    return _rounded(_addend(self.astype(dtype), beta)) + update


def _addr_bool(self: Array, vec1: Array, vec2: Array, beta: Scalar, alpha: Scalar) -> Array:
    outer = vec1[:, None] & vec2
    return (self & cast(beta, np.dtype(bool))) | (outer & cast(alpha, np.dtype(bool)))


@lower("_addmm_activation")
def addmm_activation(
    self: Array,
    mat1: Array,
    mat2: Array,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    use_gelu: bool = False,
) -> Array:
    result = accumulate(self, product(mat1, mat2), beta, alpha)
    return jax.nn.gelu(result, approximate=False) if use_gelu else jnp.maximum(result, 0)


@lower("_int_mm")
def int_mm(self: Array, mat2: Array) -> Array:
    return product(self, mat2, jnp.int32)


@lower("_scaled_mm")
def scaled_mm(
    self: Array,
    mat2: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Array:
    """float8 matrices with one scale each, or one for each row of `self` and column of `mat2`."""
    result = product(self, mat2, jnp.float32) * scale_a * scale_b
    if bias is not None:
        result = result + bias.astype(jnp.float32)
    if scale_result is not None and out_dtype is not None and out_dtype.itemsize == 1:
        result = result / scale_result
    return result


@lower("_weight_int8pack_mm")
def weight_int8pack_mm(self: Array, mat2: Array, scales: Array) -> Array:
    """A linear layer whose int8 weights have one scale for each output feature."""
    return product(self, mat2.T.astype(self.dtype)) * scales


@lower("_trilinear")
def trilinear(
    i1: Array,
    i2: Array,
    i3: Array,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Array:
    """The sum over `sumdim` of the product of three tensors, each broadcast along its `expand`."""
    rank = i1.ndim + len(expand1)

    def without(dims: list[int]) -> list[int]:
        return [d for d in range(rank) if d not in dims]

    dtype = opmath(i1.dtype)
    operands = (i1, without(expand1), i2, without(expand2), i3, without(expand3))
    return jnp.einsum(*operands, without(sumdim), preferred_element_type=dtype)
