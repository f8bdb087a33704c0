"""Solutions of linear equations from triangular factors, and least squares."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg

from .promote import cast
from .registry import lower
from .svd import factors
from .types import Array, Number, Operand, Pair


def solve_triangular(
    a: Array,
    b: Array,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    transpose: bool = False,
    adjoint: bool = False,
) -> Array:
    """Solve A X = B (`left`) or X A = B, optionally with A's transpose or adjoint."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return linalg.triangular_solve(
        jnp.broadcast_to(a, batch + a.shape[-2:]),
        jnp.broadcast_to(b, batch + b.shape[-2:]),
        left_side=left,
        lower=not upper,
        transpose_a=transpose or adjoint,
        conjugate_a=adjoint,
        unit_diagonal=unit,
    )


@lower("linalg_solve_triangular")
def linalg_solve_triangular(
    self: Array, B: Array, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    return solve_triangular(self, B, upper, left, unitriangular)


@lower("triangular_solve")
def triangular_solve(
    self: Array,
    A: Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Pair:
    solution = solve_triangular(A, self, upper, unit=unitriangular, transpose=transpose)
    return solution, jnp.broadcast_to(A, solution.shape[:-2] + A.shape[-2:])


@lower("_cholesky_solve_helper")
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def cholesky_solve(self: Array, A: Array, upper: bool) -> Array:
    """Solve L L^H X = B, or U^H U X = B.

    Like torch's, the gradient treats the factor as a full matrix.
    """
    return _by_factor(self, A, upper)


def _by_factor(self: Array, A: Array, upper: bool) -> Array:
    half = solve_triangular(A, self, upper, adjoint=upper)
    return solve_triangular(A, half, upper, adjoint=not upper)


def _save(self: Array, A: Array, upper: bool) -> tuple[Array, Pair]:
    solution = _by_factor(self, A, upper)
    return solution, (A, solution)


def _pull_back(upper: bool, saved: Pair, cotangent: Array) -> Pair:
    factor, solution = saved
    # torch's cotangents are the conjugates of JAX's.
    right = _by_factor(cotangent.conj(), factor, upper)
    both = right @ solution.mT.conj()
    both = both + both.mT.conj()
    return right.conj(), -(factor @ both if upper else both @ factor).conj()


cholesky_solve.defvjp(_save, _pull_back)


def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    identity = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    return cholesky_solve(identity, self, upper)


def _used(s: Array, cutoff: Array) -> Array:
    """Which singular values count."""
    return s > cutoff * s.max(-1, keepdims=True, initial=0)


def _inverted(a: Array, cutoff: Array) -> tuple[Array, Array, Array, Array]:
    """The factors of A, with the inverses of the singular values that count between them, and all singular values."""
    u, s, vh = factors(a, False)
    used = _used(s, cutoff)
    return u, jnp.where(used, 1 / jnp.where(used, s, 1), 0).astype(a.dtype), vh, s


@jax.custom_jvp
def _least_norm(a: Array, b: Array, cutoff: Array) -> Pair:
    """The least-norm solution by singular values, and the singular values.

    The derivative is that of the pseudoinverse P of constant rank (Golub and Pereyra, 1973):
    dP = -P dA P + P P* dA* (1 - A P) + (1 - P A) dA* P* P. Through the derivatives of singular vectors, singular values
    that are close to each other would cost most digits.
    """
    u, inverse, vh, s = _inverted(a, cutoff)
    return vh.mT.conj() @ (inverse[..., None] * (u.mT.conj() @ b)), s


@_least_norm.defjvp
def _least_norm_derivative(
    primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Pair, Pair]:
    (a, b, cutoff), (da, db, _) = primals, tangents
    x, s = _least_norm(a, b, cutoff)
    u, inverse, vh, _ = _inverted(a, cutoff)
    p = vh.mT.conj() @ (inverse[..., None] * u.mT.conj())
    across = da.mT.conj()
    outside = across @ (p.mT.conj() @ x)
    dx = p @ (db - da @ x + p.mT.conj() @ (across @ (b - a @ x))) + outside - p @ (a @ outside)
    return (x, s), (dx, jnp.zeros_like(s))


def least_squares(a: Array, b: Array, rcond: Operand, driver: str) -> tuple[Array, ...]:
    """The least-norm solution, squared residuals, rank and singular values.

    The driver "gels" assumes that A has full rank and uses QR; the others ignore singular values below `rcond` times
    the largest.
    """
    m, n = a.shape[-2:]
    real = jnp.finfo(a.dtype).dtype
    if driver == "gels":
        q, r = linalg.qr(a if m >= n else a.mT.conj(), full_matrices=False)
        if m >= n:
            x = solve_triangular(r, q.mT.conj() @ b, upper=True)
        else:
            x = q @ solve_triangular(r, b, upper=True, adjoint=True)
        rank, s = jnp.full(a.shape[:-2], min(m, n)), jnp.zeros((*a.shape[:-2], min(m, n)), real)
    else:
        cutoff = cast(rcond, real) if isinstance(rcond, Number) else None
        if cutoff is None:
            cutoff = jnp.asarray(jnp.finfo(a.dtype).eps * max(m, n), real)
        x, s = _least_norm(a, b, cutoff)
        rank = _used(s, cutoff).sum(-1, dtype=np.int64)
    residual = b - a @ x
    return x, jnp.square(jnp.abs(residual)).sum(-2), rank.astype(np.int64), s
