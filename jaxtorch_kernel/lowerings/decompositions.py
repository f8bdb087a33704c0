"""Factorizations: Cholesky, QR, eigenvalues. LU is in `lu.py`, LDL in `ldl.py`, singular values in `svd.py`.

On the CPU, JAX calls the same LAPACK routines as torch, so signs and phases agree there.
"""

from __future__ import annotations

import functools
import inspect

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


@lower("linalg_householder_product")
def householder_product(input: Array, tau: Array) -> Array:
    return linalg.householder_product(input, tau)


if hasattr(linalg, "ormqr"):  # new in jax 0.10; without it, the operator runs on the CPU

    @lower("ormqr")
    def ormqr(
        self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False
    ) -> Array:
        return linalg.ormqr(self, input2, input3, left=left, transpose=transpose)


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
