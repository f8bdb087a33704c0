"""Factorizations: Cholesky, QR, eigenvalues. LU is in `lu.py`, LDL in `ldl.py`, singular values in `svd.py`.

On the CPU, JAX calls the same LAPACK routines as torch, so signs and phases agree there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg

from .lu import eliminate, first_true
from .registry import lower
from .svd import empty
from .types import Array, Pair


@lower("linalg_cholesky_ex")
def cholesky_ex(self: Array, upper: bool = False, check_errors: bool = False) -> Pair:
    a = self.mT.conj() if upper else self
    factor = linalg.cholesky(_of_both_triangles(a), symmetrize_input=False)
    info = jnp.zeros(self.shape[:-2], np.int32)
    if self.size:
        failed = jnp.isnan(factor).any()
        info = jax.lax.cond(failed, _failing_minor, lambda _: info, a)
    factor = jnp.tril(factor)
    return (factor.mT.conj() if upper else factor), info


@jax.custom_jvp
def _of_both_triangles(a: Array) -> Array:
    """`a` unchanged. Like torch, it gives both triangles a gradient, although the factorization reads only one."""
    return a


@_of_both_triangles.defjvp
def _symmetrized(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (tangent,) = tangents
    return primals[0], (tangent + tangent.mT.conj()) / 2


def _failing_minor(a: Array) -> Array:
    """The order of the first leading minor that is not positive, or 0 if all are; reads the lower triangle."""
    strict = jnp.tril(a, -1)
    diagonal = jnp.eye(a.shape[-1], dtype=a.dtype) * jnp.real(a)
    pivots = jnp.diagonal(eliminate(strict + strict.mT.conj() + diagonal), axis1=-2, axis2=-1)
    return first_true(~(pivots.real > 0))


@lower("linalg_qr")
def qr(A: Array, mode: str = "reduced") -> Pair:
    if mode == "r":
        return empty(A), linalg.qr(A, full_matrices=False)[1]
    return linalg.qr(A, full_matrices=mode == "complete")


@lower("geqrf")
def geqrf(self: Array) -> Pair:
    transposed, tau = jnp.linalg.qr(self, mode="raw")
    return transposed.mT, tau


def _reflected(x: Array, reflectors: Array, tau: Array, adjoint: bool = False) -> Array:
    """The product of Householder reflectors, or its adjoint, times `x`, one reflector after the other.

    Args:
        x: (..., m, c).
        reflectors: (..., m, n), whose column i has the part below the diagonal of reflector i, and is 1 on it.
        tau: (..., k), with k <= n.
    """
    count = tau.shape[-1]
    columns = jnp.tril(reflectors[..., :count], -1)
    columns = columns + jnp.eye(columns.shape[-2], count, dtype=x.dtype)

    def step(x: Array, reflector: Pair) -> tuple[Array, None]:
        column, scale = reflector
        along = (column.conj()[..., None] * x).sum(-2, keepdims=True)
        return x - scale[..., None, None] * column[..., None] * along, None

    scales = jnp.moveaxis(tau.conj() if adjoint else tau, -1, 0)
    return jax.lax.scan(step, x, (jnp.moveaxis(columns, -1, 0), scales), reverse=not adjoint)[0]


def _derivative_of(
    function: Callable[..., Array], plain: Callable[..., Array]
) -> Callable[..., Array]:
    """A function whose derivative JAX lacks, with that of another of equal values."""
    ruled = jax.custom_jvp(function)

    @ruled.defjvp
    def derivative(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Pair:
        return ruled(*primals), jax.jvp(plain, primals, tangents)[1]

    return ruled


def _product_of_reflectors(reflectors: Array, tau: Array) -> Array:
    start = jnp.eye(reflectors.shape[-2], reflectors.shape[-1], dtype=reflectors.dtype)
    return _reflected(jnp.broadcast_to(start, reflectors.shape), reflectors, tau)


_householder_product = _derivative_of(linalg.householder_product, _product_of_reflectors)


@lower("linalg_householder_product")
def householder_product(input: Array, tau: Array) -> Array:
    return _householder_product(input, tau)


if hasattr(linalg, "ormqr"):  # new in jax 0.10; without it, the operator runs on the CPU

    @lower("ormqr")
    def ormqr(
        self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False
    ) -> Array:
        def multiplied(self: Array, input2: Array, input3: Array) -> Array:
            return linalg.ormqr(self, input2, input3, left=left, transpose=transpose)

        def by_reflectors(self: Array, input2: Array, input3: Array) -> Array:
            if left:
                return _reflected(input3, self, input2, transpose)
            return _reflected(input3.mT.conj(), self, input2, not transpose).mT.conj()

        return _derivative_of(multiplied, by_reflectors)(self, input2, input3)


@lower("_linalg_eigh")
def eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> Pair:
    vectors, values = linalg.eigh(
        _hermitian(A, UPLO in "Ll"), lower=UPLO in "Ll", symmetrize_input=False
    )
    return values, vectors if compute_v else empty(A)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _hermitian(a: Array, lower: bool) -> Array:
    """The Hermitian matrix with one triangle of `a`. As in torch, both triangles get a gradient."""
    half = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    diagonal = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(diagonal, jnp.real(a).astype(a.dtype), half + half.mT.conj())


@_hermitian.defjvp
def _symmetrized_triangle(
    lower: bool, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    return _hermitian(primals[0], lower), (tangents[0] + tangents[0].mT.conj()) / 2


# Eigenvectors, and so their derivatives, are unique only up to a phase, as in torch. Newer versions of JAX
# differentiate them only with this option.
if "enable_eigvec_derivs" in inspect.signature(linalg.eig).parameters:
    _eig = functools.partial(linalg.eig, enable_eigvec_derivs=True)
else:
    _eig = functools.partial(linalg.eig)


@lower("linalg_eig")
def eig(self: Array) -> list[Array]:
    return _eig(self, compute_left_eigenvectors=False)


@lower("_linalg_eigvals")
def eigvals(self: Array) -> Array:
    return linalg.eig(self, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
