"""Factorizations: Cholesky, QR, eigenvalues. LU is in `lu.py`, LDL in `ldl.py`, singular values in `svd.py`.

On the CPU, JAX calls the same LAPACK routines as torch, so signs and phases agree there.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg

from .lu import eliminate, first_true
from .registry import lower
from .svd import nothing


@lower("linalg_cholesky_ex")
def cholesky_ex(self: Any, upper: bool = False, check_errors: bool = False) -> Any:
    a = self.mT.conj() if upper else self
    factor = linalg.cholesky(_of_both_triangles(a), symmetrize_input=False)
    info = jnp.zeros(self.shape[:-2], np.int32)
    if self.size:
        failed = jnp.isnan(factor).any()
        info = jax.lax.cond(failed, _failing_minor, lambda _: info, a)
    factor = jnp.tril(factor)
    return (factor.mT.conj() if upper else factor), info


@jax.custom_jvp
def _of_both_triangles(a: jax.Array) -> jax.Array:
    """`a`, with gradients shared between both triangles, as torch's are, though only one is read."""
    return a


@_of_both_triangles.defjvp
def _shared(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (change,) = tangents
    return primals[0], (change + change.mT.conj()) / 2


def _failing_minor(a: jax.Array) -> jax.Array:
    """The order of the first leading minor that is not positive, or 0; reads the lower triangle."""
    strict = jnp.tril(a, -1)
    diagonal = jnp.eye(a.shape[-1], dtype=a.dtype) * jnp.real(a)
    pivots = jnp.diagonal(eliminate(strict + strict.mT.conj() + diagonal), axis1=-2, axis2=-1)
    return first_true(~(pivots.real > 0))


@lower("linalg_qr")
def qr(A: Any, mode: str = "reduced") -> Any:
    if mode == "r":
        return nothing(A), linalg.qr(A, full_matrices=False)[1]
    return linalg.qr(A, full_matrices=mode == "complete")


@lower("geqrf")
def geqrf(self: Any) -> Any:
    transposed, tau = jnp.linalg.qr(self, mode="raw")
    return transposed.mT, tau


@lower("linalg_householder_product")
def householder_product(input: Any, tau: Any) -> jax.Array:
    return linalg.householder_product(input, tau)


if hasattr(linalg, "ormqr"):  # since jax 0.10; with an older one torch's CPU computes it

    @lower("ormqr")
    def ormqr(
        self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False
    ) -> jax.Array:
        return linalg.ormqr(self, input2, input3, left=left, transpose=transpose)


@lower("_linalg_eigh")
def eigh(A: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    vectors, values = linalg.eigh(
        _hermitian(A, UPLO in "Ll"), lower=UPLO in "Ll", symmetrize_input=False
    )
    return values, vectors if compute_v else nothing(A)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _hermitian(a: jax.Array, lower: bool) -> jax.Array:
    """The Hermitian matrix of which `a` has one triangle. Gradients go to both, as torch's do."""
    half = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    diagonal = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(diagonal, jnp.real(a).astype(a.dtype), half + half.mT.conj())


@_hermitian.defjvp
def _shared_of_triangle(
    lower: bool, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return _hermitian(primals[0], lower), (tangents[0] + tangents[0].mT.conj()) / 2


# Derivatives of eigenvectors hold up to a phase, as torch's do; newer versions of JAX want that to be said.
_EIG = inspect.signature(linalg.eig).parameters
_KNOWING: dict[str, Any] = {"enable_eigvec_derivs": True} if "enable_eigvec_derivs" in _EIG else {}


@lower("linalg_eig")
def eig(self: Any) -> Any:
    return linalg.eig(self, compute_left_eigenvectors=False, **_KNOWING)


@lower("_linalg_eigvals")
def eigvals(self: Any) -> jax.Array:
    return linalg.eig(self, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
