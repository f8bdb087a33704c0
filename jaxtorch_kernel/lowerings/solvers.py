"""Solutions of linear equations from triangular factors, and least squares."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg

from .promote import Number, cast
from .registry import lower
from .svd import factors


def solve_triangular(
    a: jax.Array,
    b: jax.Array,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    transpose: bool = False,
    adjoint: bool = False,
) -> jax.Array:
    """X of A X = B (`left`) or X A = B, optionally with A's transpose or adjoint."""
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
    self: Any, B: Any, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    return solve_triangular(self, B, upper, left, unitriangular)


@lower("triangular_solve")
def triangular_solve(
    self: Any,
    A: Any,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    solution = solve_triangular(A, self, upper, unit=unitriangular, transpose=transpose)
    return solution, jnp.broadcast_to(A, solution.shape[:-2] + A.shape[-2:])


@lower("_cholesky_solve_helper")
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def cholesky_solve(self: Any, A: Any, upper: bool) -> jax.Array:
    """X of L L^H X = B, or of U^H U X = B. As torch's, the gradient takes the factor for a whole matrix."""
    return _by_factor(self, A, upper)


def _by_factor(self: Any, A: Any, upper: bool) -> jax.Array:
    half = solve_triangular(A, self, upper, adjoint=upper)
    return solve_triangular(A, half, upper, adjoint=not upper)


def _save(self: Any, A: Any, upper: bool) -> Any:
    solution = _by_factor(self, A, upper)
    return solution, (A, solution)


def _pull_back(upper: bool, saved: Any, given: Any) -> tuple[jax.Array, jax.Array]:
    factor, solution = saved
    right = _by_factor(
        given.conj(), factor, upper
    )  # torch's cotangents are the conjugates of JAX's
    both = right @ solution.mT.conj()
    both = both + both.mT.conj()
    return right.conj(), -(factor @ both if upper else both @ factor).conj()


cholesky_solve.defvjp(_save, _pull_back)


def cholesky_inverse(self: Any, upper: bool = False) -> jax.Array:
    identity = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    return cholesky_solve(identity, self, upper)


def least_squares(a: jax.Array, b: jax.Array, rcond: Any, driver: str) -> tuple[jax.Array, ...]:
    """Solution of least norm, squares of the residuals, rank and singular values.

    The driver "gels" takes A to be of full rank and factors it by QR; the others cut off singular values
    below `rcond` times the largest.
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
        u, s, vh = factors(a, False)
        cutoff = cast(rcond, real) if isinstance(rcond, Number) else None
        if cutoff is None:
            cutoff = jnp.asarray(jnp.finfo(a.dtype).eps * max(m, n), real)
        kept = s > cutoff * s.max(-1, keepdims=True, initial=0)
        inverse = jnp.where(kept, 1 / jnp.where(kept, s, 1), 0).astype(a.dtype)
        x = vh.mT.conj() @ (inverse[..., None] * (u.mT.conj() @ b))
        rank = kept.sum(-1, dtype=np.int64)
    residual = b - a @ x
    return x, jnp.square(jnp.abs(residual)).sum(-2), rank.astype(np.int64), s
