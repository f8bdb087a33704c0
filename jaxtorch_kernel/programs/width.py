"""Numbers of 64 bits: torch has them, and JAX has them if the user enables them.

Code of torch is traced with x64 enabled in its thread. A JAX function that such code calls is the user's own, and must
compute what JAX computes: there, `jnp.arange(3)` has 32 bits unless the user has set `jax_enable_x64`. Besides, wide
numbers are slow on a TPU, and Mosaic, which compiles Pallas kernels, refuses them as indices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import linear_util
from jax.extend.core import ClosedJaxpr, Jaxpr

_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


class _Outer(threading.local):
    """The user's own setting in this thread while code of torch is traced; None outside."""

    wide: bool | None = None


_outer = _Outer()


def is_wide(dtype: np.dtype) -> bool:
    """Whether JAX has this dtype only with x64.

    Example:
        >>> is_wide(np.dtype("complex64")), is_wide(np.dtype("int64"))
        (False, True)
    """
    return dtype in _WIDE


def of_user() -> bool:
    """Whether the user has enabled x64, also inside `of_torch`."""
    return bool(jax.config.jax_enable_x64) if _outer.wide is None else _outer.wide  # type: ignore[attr-defined]  # made at import


@contextmanager
def of_torch() -> Iterator[None]:
    """Context with x64 enabled, in which code of torch is traced."""
    before, _outer.wide = _outer.wide, of_user()
    try:
        with jax.enable_x64(True):
            yield
    finally:
        _outer.wide = before


def narrow(function: Callable[..., Sequence[jax.Array]]) -> Callable[..., list[jax.Array]]:
    """A function that is traced without x64, however it is called; so are the rules of derivatives inside it.

    Args:
        function: of arrays, none of which has 64 bits.
    """

    def traced(*operands: jax.Array) -> list[jax.Array]:
        with jax.enable_x64(False):
            closed = jax.make_jaxpr(function)(*operands)
        program = _with_narrow_rules(closed.jaxpr)
        results = jax.core.eval_jaxpr(program, closed.consts, *operands)
        # A constant result is a Python number here.
        return [
            r if isinstance(r, jax.Array) else jnp.asarray(r, aval.dtype)
            for r, aval in zip(results, closed.out_avals, strict=True)
        ]

    return traced


@linear_util.transformation2
def _without_x64(function: Callable[..., object], *args: object) -> object:
    with jax.enable_x64(False):
        return function(*args)


def _with_narrow_rules(jaxpr: Jaxpr) -> Jaxpr:
    """A program whose rules of derivatives, which JAX traces later, are traced without x64."""
    equations = [
        e.replace(params={key: _narrowed(value) for key, value in e.params.items()})
        for e in jaxpr.eqns
    ]
    changed: Jaxpr = jaxpr.replace(eqns=equations)
    return changed


def _narrowed(value: object) -> object:
    if isinstance(value, linear_util.WrappedFun):
        return _without_x64(value)
    if isinstance(value, Jaxpr):
        return _with_narrow_rules(value)
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=_with_narrow_rules(value.jaxpr))
    if type(value) is tuple:  # of branches, say
        return tuple(map(_narrowed, value))
    return value
