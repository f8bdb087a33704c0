"""LDL factorization of symmetric and Hermitian matrices, with Bunch-Kaufman pivoting as in LAPACK's sytrf.

D has blocks of one or two rows. A block of one row that was exchanged with row p has the pivot p + 1; both rows of a
larger block have -(p + 1), where p is the row exchanged with its second row. D's subdiagonal entries are stored in
place of L's, which are zero inside a block. XLA has no such routine. This one computes on a whole matrix with masks,
and `jax.vmap` batches it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .registry import lower
from .types import Array

R = TypeVar("R")
State = tuple[Array, Array, Array, Array]  # next column, matrix, pivots, info

_ALPHA = (1 + 17**0.5) / 8  # minimizes the bound on the growth of entries


def _magnitude(x: Array) -> Array:
    """LAPACK's cabs1: |real| + |imaginary|, which needs no square root."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _exchange(rows: Array, i: Array, j: Array) -> Array:
    """The order of rows with two of them exchanged."""
    return jnp.where(rows == i, j, jnp.where(rows == j, i, rows))


def _adjoint(x: Array, hermitian: bool) -> Array:
    return x.mT.conj() if hermitian else x.mT


def _choose(a: Array, k: Array, rows: Array) -> tuple[Array, ...]:
    """The row to exchange, whether the block has two rows, and whether the column is zero."""
    size = _magnitude(a)
    column = jnp.where(rows > k, size[:, k], -1)
    largest = jax.lax.argmax(column, 0, np.int32)
    below, here = jnp.maximum(column[largest], 0), size[k, k]
    others = jnp.where((rows >= k) & (rows != largest), size[largest], 0).max()
    keep = (here >= _ALPHA * below) | (here * others >= _ALPHA * below * below)
    single = size[largest, largest] >= _ALPHA * others
    zero = ~(jnp.maximum(here, below) > 0)
    return jnp.where(keep | zero, k, largest), ~(keep | single | zero), zero


def _factor(a: Array, hermitian: bool) -> tuple[Array, Array, Array]:
    """LD, pivots and info of one matrix; reads its lower triangle."""
    n = a.shape[-1]
    rows = jnp.arange(n, dtype=np.int32)
    strict = jnp.tril(a, -1)
    diagonal = a.diagonal().real.astype(a.dtype) if hermitian else a.diagonal()
    full = strict + _adjoint(strict, hermitian) + jnp.diag(diagonal)

    def step(state: State) -> State:
        k, a, pivots, info = state
        other, double, zero = _choose(a, k, rows)
        last = k + double.astype(np.int32)
        order = _exchange(rows, last, other)
        trailing = (rows >= k)[:, None] & (rows >= k)
        a = jnp.where(trailing, a[order][:, order], a)
        rest = (rows > last)[:, None]
        x = jnp.where(rest, a[:, (k, last)], 0)
        quotient = jnp.where(double, _divide_by_block(x, a, k), _divide_by_one(x, a, k))
        quotient = jnp.where(zero, 0, quotient)
        used = jnp.where(jnp.stack([~zero, double]), quotient, 0)
        a = a - used @ _adjoint(x, hermitian)
        for i, column in enumerate((k, last)):
            a = a.at[:, column].set(jnp.where(rest[:, 0], quotient[:, i], a[:, column]))
        pivot = jnp.where(double, -(other + 1), other + 1)
        pivots = jnp.where((rows == k) | (rows == last), pivot, pivots)
        info = jnp.where((info == 0) & zero, k + 1, info)
        return last + np.int32(1), a, pivots, info

    start = (jnp.int32(0), full, jnp.zeros((n,), np.int32), jnp.int32(0))
    _, full, pivots, info = jax.lax.while_loop(lambda s: s[0] < n, step, start)
    return jnp.tril(full), pivots, info


def _divide_by_one(x: Array, a: Array, k: Array) -> Array:
    """Columns divided by a block of one row; both columns are the same."""
    return x / a[k, k]


def _divide_by_block(x: Array, a: Array, k: Array) -> Array:
    """Columns times the inverse of the block of rows k and k + 1."""
    p, q, r, s = a[k, k], a[k, k + 1], a[k + 1, k], a[k + 1, k + 1]
    inverse = jnp.array([[s, -q], [-r, p]]) / (p * s - q * r)
    return x @ inverse


def _solve(ld: Array, pivots: Array, b: Array, hermitian: bool) -> Array:
    """Solve A X = B for one matrix: downwards through L and D, then upwards through L's adjoint."""
    n = ld.shape[-1]
    rows = jnp.arange(n, dtype=np.int32)

    def columns(k: Array, last: Array) -> Array:
        return jnp.where((rows > last)[:, None], ld[:, (k, last)], 0)

    def down(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, b = state
        double = pivots[k] < 0
        last = k + double.astype(np.int32)
        b = b[_exchange(rows, last, jnp.abs(pivots[k]) - 1)]
        block = jnp.where(double, b[(k, last), :], b[(k, k), :] * jnp.array([[1], [0]], b.dtype))
        b = b - columns(k, last) @ block
        below = ld[last, k]
        above = below.conj() if hermitian else below
        p, s = ld[k, k], ld[last, last]
        first = jnp.where(double, (s * b[k] - above * b[last]), b[k])
        determinant = jnp.where(double, p * s - above * below, p)
        second = jnp.where(double, p * b[last] - below * b[k], b[k])
        b = b.at[k].set(first / determinant).at[last].set(second / determinant)
        return last + np.int32(1), b

    def up(state: tuple[Array, Array]) -> tuple[Array, Array]:
        last, b = state
        k = last - (pivots[last] < 0).astype(np.int32)
        update = _adjoint(columns(k, last), hermitian) @ b
        b = b.at[k].add(-update[0])
        b = jnp.where((rows == last)[:, None] & (k < last), b - update[1], b)
        return k - np.int32(1), b[_exchange(rows, last, jnp.abs(pivots[last]) - 1)]

    _, b = jax.lax.while_loop(lambda s: s[0] < n, down, (jnp.int32(0), b))
    return jax.lax.while_loop(lambda s: s[0] >= 0, up, (jnp.int32(n - 1), b))[1]


def _batched(function: Callable[..., R], batch: tuple[int, ...]) -> Callable[..., R]:
    for _ in batch:
        function = jax.vmap(function)
    return function


@lower("linalg_ldl_factor_ex")
def ldl_factor_ex(
    self: Array, hermitian: bool = False, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    batch = self.shape[:-2]
    if not self.size:
        return self, jnp.zeros(self.shape[:-1], np.int32), jnp.zeros(batch, np.int32)
    return _batched(functools.partial(_factor, hermitian=hermitian), batch)(self)


@lower("linalg_ldl_solve")
def ldl_solve(LD: Array, pivots: Array, B: Array, hermitian: bool = False) -> Array:
    batch = jnp.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    LD, B = (jnp.broadcast_to(x, batch + x.shape[-2:]) for x in (LD, B))
    if not B.size:
        return B
    pivots = jnp.broadcast_to(pivots, batch + pivots.shape[-1:])
    return _batched(functools.partial(_solve, hermitian=hermitian), batch)(LD, pivots, B)
