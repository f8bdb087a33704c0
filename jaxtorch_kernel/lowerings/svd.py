"""Singular values and vectors, with their derivative.

This fills two gaps in JAX's version. JAX has no derivative for a full factorization, which has more than min(m, n)
vectors (torch differentiates only the first min(m, n)). And with 64-bit types enabled, JAX's version contains a product
with int64 that the TPU compiler rejects.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.lax import linalg

from .registry import lower
from .types import Array

Factors = tuple[Array, Array, Array]


def empty(like: Array) -> Array:
    """An empty array, which torch returns for results that were not requested."""
    return jnp.zeros((0,), like.dtype)


@lower("_linalg_svd")
def svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> Factors:
    if not compute_uv:
        return empty(A), linalg.svd(A, compute_uv=False), empty(A)
    return factors(A, full_matrices)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def factors(a: Array, full: bool) -> Factors:
    """U, the singular values, and the conjugate transpose of V."""
    by_jax = functools.partial(linalg.svd, full_matrices=full)
    if not a.size:
        return by_jax(a)
    polar = functools.partial(_by_polar, full=full)
    for _ in a.shape[:-2]:
        polar = jax.vmap(polar)
    return jax.lax.platform_dependent(a, tpu=polar, default=by_jax)


def _by_polar(a: Array, full: bool) -> Factors:
    """The factors of one matrix, from its polar decomposition a = u h and the eigenvectors of h."""
    m, n = a.shape
    if m < n:
        u, s, vh = _by_polar(a.mT.conj(), full)
        return vh.mT.conj(), s, u.mT.conj()
    left, square = linalg.qr(a, full_matrices=full)
    with jax.default_matmul_precision("float32"):
        unitary, h, _, _ = linalg.qdwh(square[:n])
        v, s = linalg.eigh(h, sort_eigenvalues=False)
        order = jnp.argsort(-s)
        s, v = jnp.maximum(s[order], 0), v[:, order]
        # The polar factor of a singular matrix is not unitary. QR replaces the vectors of zero singular values by
        # arbitrary ones that complete the others.
        u, r = linalg.qr(unitary @ v, full_matrices=False)
        u = u * jnp.where(jnp.diagonal(r).real >= 0, 1, -1).astype(u.dtype)
        return jnp.concatenate([left[:, :n] @ u, left[:, n:]], 1), s, v.mT.conj()


@factors.defjvp
def _derivative(
    full: bool, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Factors, Factors]:
    """Solve da = du s vh + u ds vh + u s dvh, where u^H du and v^H dv are skew-Hermitian."""
    (a,), (da,) = primals, tangents
    outputs = factors(a, full)
    rank = min(a.shape[-2:])
    u, s, vh = outputs[0][..., :rank], outputs[1], outputs[2][..., :rank, :]
    uh, v = u.mT.conj(), vh.mT.conj()
    with jax.default_matmul_precision("float32"):
        inner = uh @ da @ v
        ds = jnp.diagonal(inner, axis1=-2, axis2=-1).real
        row, column = s[..., None, :], s[..., :, None]
        gaps = (row - column) * (row + column)
        gaps = jnp.where(jnp.eye(rank, dtype=bool), 1, gaps)
        scaled, other = inner * row, inner * column
        off = ~jnp.eye(rank, dtype=bool)
        turn_u = jnp.where(off, (scaled + scaled.mT.conj()) / gaps, 0)
        turn_v = jnp.where(off, (other + other.mT.conj()) / gaps, 0)
        # The factors do not determine the phases; the free part goes to u, as in JAX's own derivative.
        skew = (inner - inner.mT.conj()) / 2  # 0 for real numbers
        turn_u = turn_u + jnp.where(off | (row == 0), 0, skew / jnp.where(row == 0, 1, row))
        du, dv = u @ turn_u, v @ turn_v
        if a.shape[-2] > rank:
            beyond = da @ v
            du = du + (beyond - u @ (uh @ beyond)) / row
        if a.shape[-1] > rank:
            beyond = da.mT.conj() @ u
            dv = dv + (beyond - v @ (vh @ beyond)) / row
    missing = outputs[0].shape[-1] - rank
    du = jnp.pad(du, [(0, 0)] * (a.ndim - 1) + [(0, missing)])
    missing = outputs[2].shape[-2] - rank
    dvh = jnp.pad(dv.mT.conj(), [(0, 0)] * (a.ndim - 2) + [(0, missing), (0, 0)])
    return outputs, (du, ds, dvh)


# -- the pseudoinverse -----------------------------------------------------------------------------


@lower("linalg_pinv.atol_rtol_tensor")
def pinv(
    A: Array, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False
) -> Array:
    if not A.size:
        return jnp.zeros((*A.shape[:-2], A.shape[-1], A.shape[-2]), A.dtype)
    if rtol is None:
        rtol = jnp.asarray(jnp.finfo(A.dtype).eps * max(A.shape[-2:]))
        rtol = rtol if atol is None else jnp.where(atol > 0, 0, rtol)
    return _pinv(A, jnp.asarray(0 if atol is None else atol), rtol, hermitian)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _pinv(a: Array, atol: Array, rtol: Array, hermitian: bool) -> Array:
    if hermitian:
        v, s = linalg.eigh(a, symmetrize_input=False)
        u = v
    else:
        u, s, vh = factors(a, False)
        v = vh.mT.conj()
    size = jnp.abs(s)
    least = jnp.maximum(atol, rtol * jnp.max(size, -1))[..., None]
    inverse = jnp.where(size > least, 1 / s, 0).astype(s.dtype)
    return (v * inverse[..., None, :].astype(a.dtype)) @ u.mT.conj()


@_pinv.defjvp
def _pinv_derivative(hermitian: bool, primals: Array, tangents: Array) -> tuple[Array, Array]:
    """The formula of Golub and Pereyra for constant rank. It avoids the derivatives of singular vectors, which are
    infinite where two singular values are equal."""
    a, tangent = primals[0], tangents[0]
    p = _pinv(*primals, hermitian)
    ph, back = p.mT.conj(), tangent.mT.conj()
    with jax.default_matmul_precision("float32"):
        left = p @ ph @ (back - back @ a @ p)
        right = (back - p @ a @ back) @ ph @ p
        return p, left + right - p @ tangent @ p
