"""LU factorization, and the solutions, inverses and determinants that torch computes with it.

Pivots are LAPACK's: row i was exchanged with row `pivots[i]`, counted from one. `info` is the position of the first
zero pivot, counted from one, or 0 if there is none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg
from jax.typing import DTypeLike

from .registry import lower
from .solvers import solve_triangular
from .types import Array, Pair


def first_true(flags: Array) -> Array:
    """The position of the first true flag in each row, counted from one, or 0 if there is none."""
    if not flags.shape[-1]:
        return jnp.zeros(flags.shape[:-1], np.int32)
    first = jax.lax.argmax(flags, flags.ndim - 1, np.int32) + np.int32(1)
    return jnp.where(flags.any(-1), first, np.int32(0))


def eliminate(a: Array) -> Array:
    """LU without exchanging rows: L below the diagonal, U on and above it."""
    rows, columns = (np.arange(n, dtype=np.int32) for n in a.shape[-2:])

    def step(j: Array, a: Array) -> Array:
        column = jax.lax.dynamic_index_in_dim(a, j, -1)
        row = jax.lax.dynamic_index_in_dim(a, j, -2)
        pivot = jax.lax.dynamic_index_in_dim(column, j, -2)
        below = (rows > j)[:, None]
        factors = jnp.where(below, column / pivot, 0)
        a = a - factors * jnp.where(columns > j, row, 0)
        return jnp.where(below & (columns == j), factors, a)

    return jax.lax.fori_loop(np.int32(0), np.int32(min(a.shape[-2:])), step, a)


def factor(a: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """LU in one matrix, pivots, info."""
    if pivot:
        lu, pivots, _ = linalg.lu(a)
        pivots = pivots + np.int32(1)
    else:
        lu = eliminate(a)
        count = min(a.shape[-2:])
        pivots = jnp.broadcast_to(np.arange(1, count + 1, dtype=np.int32), (*a.shape[:-2], count))
    return lu, pivots, first_zero_pivot(lu)


def first_zero_pivot(a: Array) -> Array:
    """The `info` of a triangular factor."""
    return first_true(_diagonal(a) == 0)


def _diagonal(a: Array) -> Array:
    return jnp.diagonal(a, axis1=-2, axis2=-1)


def _permutation(pivots: Array, rows: int) -> Array:
    """The order in which a factorization eliminated the rows."""
    return linalg.lu_pivots_to_permutation(pivots - np.int32(1), rows)


def _permutation_matrix(permutation: Array, dtype: DTypeLike) -> Array:
    """The matrix P in A = P L U."""
    rows = np.arange(permutation.shape[-1], dtype=np.int32)
    return (rows[:, None] == permutation[..., None, :]).astype(dtype)


def _solve(lu: Array, pivots: Array, b: Array, adjoint: bool) -> Array:
    """Solve A X = B or, with `adjoint`, A^H X = B."""
    batch = jnp.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    b = jnp.broadcast_to(b, batch + b.shape[-2:])
    order = _permutation(pivots, lu.shape[-1])
    if not adjoint:
        order = jnp.broadcast_to(order, batch + order.shape[-1:])
        b = jnp.take_along_axis(b, order[..., None], -2)
        b = solve_triangular(lu, b, upper=False, unit=True)
        return solve_triangular(lu, b, upper=True)
    b = solve_triangular(lu, b, upper=True, adjoint=True)
    b = solve_triangular(lu, b, upper=False, unit=True, adjoint=True)
    counted = jax.lax.broadcasted_iota(np.int32, order.shape, order.ndim - 1)
    _, inverse = jax.lax.sort_key_val(order, counted)
    inverse = jnp.broadcast_to(inverse, batch + inverse.shape[-1:])
    return jnp.take_along_axis(b, inverse[..., None], -2)


@lower("linalg_lu_factor_ex")
def lu_factor_ex(
    A: Array, pivot: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    return factor(A, pivot)


@lower("linalg_lu")
def lu(A: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    compact, pivots, _ = factor(A, pivot)
    permutation, lower_factor, upper_factor = lu_unpack(compact, pivots)
    return permutation if pivot else jnp.zeros((0,), A.dtype), lower_factor, upper_factor


@lower("lu_unpack")
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    permutation = lower_factor = upper_factor = jnp.zeros((0,), LU_data.dtype)
    rows, columns = LU_data.shape[-2:]
    if unpack_data:
        count = min(rows, columns)
        unit = jnp.eye(rows, count, dtype=LU_data.dtype)
        lower_factor = jnp.tril(LU_data[..., :, :count], -1) + unit
        upper_factor = jnp.triu(LU_data[..., :count, :])
    if unpack_pivots:
        permutation = _permutation_matrix(_permutation(LU_pivots, rows), LU_data.dtype)
    return permutation, lower_factor, upper_factor


@lower("linalg_lu_solve")
def lu_solve(LU: Array, pivots: Array, B: Array, left: bool = True, adjoint: bool = False) -> Array:
    if left:
        return _solve(LU, pivots, B, adjoint)
    return _solve(LU, pivots, B.mT.conj(), not adjoint).mT.conj()


@lower("_linalg_solve_ex")
def solve_ex(
    A: Array, B: Array, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    compact, pivots, info = factor(A)
    vector = B.ndim == 1 or A.shape[:-1] == B.shape
    x = lu_solve(compact, pivots, B[..., None] if vector else B, left)
    return x[..., 0] if vector else x, compact, pivots, info


@lower("linalg_inv_ex")
def inv_ex(A: Array, check_errors: bool = False) -> Pair:
    compact, pivots, info = factor(A)
    return _solve(compact, pivots, jnp.eye(A.shape[-1], dtype=A.dtype), False), info


def _parity(pivots: Array) -> Array:
    """The determinant of the permutation: 1 or -1."""
    exchanged = pivots != np.arange(1, pivots.shape[-1] + 1, dtype=np.int32)
    return 1 - 2 * (exchanged.sum(-1, dtype=np.int32) % 2)


@lower("_linalg_det")
def det(A: Array, transposed: bool = False) -> tuple[Array, Array, Array]:
    compact, pivots, _ = factor(A.mT if transposed else A)
    return _diagonal(compact).prod(-1) * _parity(pivots).astype(A.dtype), compact, pivots


@lower("_linalg_slogdet")
def slogdet(A: Array, transposed: bool = False) -> tuple[Array, Array, Array, Array]:
    compact, pivots, _ = factor(A.mT if transposed else A)
    diagonal = _diagonal(compact)
    sign = jnp.sign(diagonal).prod(-1) * _parity(pivots).astype(A.dtype)
    return sign, jnp.log(jnp.abs(diagonal)).sum(-1), compact, pivots
