"""Shared code of the elementwise families: casting operands to the computation dtype, and table-driven lowerings.

Half types are computed in float32 and rounded once, by the dispatch, to the dtype that torch gives
the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .promote import Number, Operand, cast, default_dtype, kind_of, opmath, result_dtype
from .registry import lower

Function = Callable[..., jax.Array]


def _computed(operands: tuple[Operand, ...], dtype: Any) -> tuple[Any, ...]:
    """Arrays are first rounded to the operands' common dtype, as torch does; numbers never are."""
    wide = opmath(dtype)
    return tuple(
        x if x is None else cast(x if isinstance(x, Number) else cast(x, dtype), wide)
        for x in operands
    )


def arithmetic(*operands: Operand) -> tuple[jax.Array, ...]:
    """The operands in the opmath of their common dtype. None stays None."""
    return _computed(operands, result_dtype(*operands))


def floating(*operands: Operand) -> tuple[jax.Array, ...]:
    """As `arithmetic`, integers and bools becoming the default float dtype."""
    dtype = result_dtype(*operands)
    return _computed(operands, default_dtype() if kind_of(dtype) in "bi" else dtype)


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """Round to the precision of `dtype`, in between; a cast there and back would be optimized away."""
    info = jnp.finfo(dtype)
    return lax.reduce_precision(x, info.nexp, info.nmant)


def lower_arithmetic(table: Mapping[str, Function]) -> None:
    """Register functions of arrays that have one dtype, which is the result's."""
    _lower_all(table, arithmetic)


def lower_floating(table: Mapping[str, Function]) -> None:
    """Register functions of floating (or complex) arrays that have one dtype."""
    _lower_all(table, floating)


def _lower_all(
    table: Mapping[str, Function], prepare: Callable[..., tuple[jax.Array, ...]]
) -> None:
    for names, function in table.items():
        lower(*names.split())(_composed(function, prepare))


def _composed(function: Function, prepare: Callable[..., tuple[jax.Array, ...]]) -> Function:
    def lowering(*operands: Operand) -> jax.Array:
        return function(*prepare(*operands))

    return lowering
