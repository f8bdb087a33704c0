"""Shared code of the elementwise families: casting operands to the computation dtype, and table-driven lowerings.

Half types are computed in float32. The dispatch rounds once, to the dtype that torch gives the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from .promote import cast, default_dtype, kind_of, opmath, result_dtype
from .registry import lower
from .types import Array, Function, Number, Operand


def _computed(operands: tuple[Operand, ...], dtype: np.dtype) -> tuple[Array, ...]:
    """Operands in the opmath of `dtype`. Like torch, this rounds arrays to `dtype` first, but not numbers."""
    wide = opmath(dtype)
    return tuple(cast(x if isinstance(x, Number) else cast(x, dtype), wide) for x in operands)


def arithmetic(*operands: Operand) -> tuple[Array, ...]:
    """The operands in the opmath of their common dtype."""
    return _computed(operands, result_dtype(*operands))


def floating(*operands: Operand) -> tuple[Array, ...]:
    """Like `arithmetic`, but integers and bools become the default float dtype."""
    dtype = result_dtype(*operands)
    return _computed(operands, default_dtype() if kind_of(dtype) in "bi" else dtype)


def rounded(x: Array, dtype: DTypeLike) -> Array:
    """Round an intermediate value to the precision of `dtype`; XLA would optimize away a cast there and back."""
    info = jnp.finfo(dtype)
    return lax.reduce_precision(x, info.nexp, info.nmant)


def lower_arithmetic(table: Mapping[str, Function]) -> None:
    """Register functions whose operands and result share one dtype."""
    _lower_all(table, arithmetic)


def lower_floating(table: Mapping[str, Function]) -> None:
    """Register functions whose operands and result share one floating or complex dtype."""
    _lower_all(table, floating)


def _lower_all(table: Mapping[str, Function], prepare: Callable[..., tuple[Array, ...]]) -> None:
    for names, function in table.items():
        lower(*names.split())(_composed(function, prepare))


def _composed(function: Function, prepare: Callable[..., tuple[Array, ...]]) -> Function:
    def lowering(*operands: Operand) -> Array:
        return function(*prepare(*operands))

    return lowering
