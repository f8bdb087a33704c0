"""torch's type promotion, for lowerings.

torch ranks operands in three classes: tensors with dimensions, tensors without, and plain numbers. A lower class
changes the result only if its category (bool < int < float < complex) is higher than that of the classes above it.
JAX's rules differ (under x64, int32 + 1.5 is float64 in JAX and float32 in torch), so lowerings must not rely on them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar, overload

import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import DTypeLike

from ..storage.dtypes import to_numpy, to_torch
from .types import Array, Number, Operand

R = TypeVar("R")


_CATEGORIES = "bifc"  # from low to high


def kind_of(dtype: DTypeLike) -> str:
    """The category of a NumPy or ml_dtypes dtype: "b", "i", "f" or "c"."""
    dtype = np.dtype(dtype)
    if dtype.kind in "bifc":
        return dtype.kind
    return "i" if dtype.kind == "u" else "f"


def _category(dtype: torch.dtype) -> int:
    return _CATEGORIES.index(kind_of(to_numpy(dtype)))


def default_dtype() -> np.dtype:
    """torch's default float dtype, as NumPy's."""
    return to_numpy(torch.get_default_dtype())


def _default_of(kind: str) -> torch.dtype:
    if kind == "b":
        return torch.bool
    if kind == "i":
        return torch.int64
    default = torch.get_default_dtype()
    if kind == "c":
        return torch.complex128 if default is torch.float64 else torch.complex64
    return default


def result_dtype(*operands: Operand) -> np.dtype:
    """The dtype in which torch combines these operands."""
    classes: list[torch.dtype | None] = [None, None, None]

    def add(rank: int, dtype: torch.dtype) -> None:
        old = classes[rank]
        classes[rank] = dtype if old is None else torch.promote_types(old, dtype)

    for x in operands:
        if isinstance(x, Number):
            if x.dtype is None:
                add(2, _default_of(x.kind))
            else:
                add(1, to_torch(x.dtype))
        elif isinstance(x, bool | int | float | complex):
            add(2, _default_of(kind_of(np.asarray(x).dtype)))
        else:
            add(0 if x.ndim else 1, to_torch(x.dtype))
    result: torch.dtype | None = None
    for dtype in classes:
        if dtype is None:
            continue
        if result is None:
            result = dtype
        elif _category(dtype) > _category(result):
            result = torch.promote_types(result, dtype)
    assert result is not None
    return to_numpy(result)


def convert(x: Array, dtype: DTypeLike) -> Array:
    """Convert an array as torch does: complex numbers lose their imaginary part, and float8_e4m3fn saturates."""
    if x.dtype == dtype:
        return x
    dtype = np.dtype(dtype)
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    if dtype == np.dtype(jnp.float8_e4m3fn):
        largest = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -largest, largest)
    return x.astype(dtype)


def cast(x: Operand, dtype: DTypeLike) -> Array:
    """An array, Number or Python number as an array of `dtype`."""
    if isinstance(x, Number):
        return x.as_dtype(dtype)
    if isinstance(x, bool | int | float | complex):
        return jnp.asarray(x, dtype)
    return convert(x, dtype)


def promote(*operands: Operand) -> tuple[Array, ...]:
    """The operands as arrays of their common dtype."""
    dtype = result_dtype(*operands)
    return tuple(cast(x, dtype) for x in operands)


def promote_float(*operands: Operand) -> tuple[Array, ...]:
    """Like `promote`, but integers and bools become the default float dtype."""
    dtype = result_dtype(*operands)
    if kind_of(dtype) in "bi":
        dtype = default_dtype()
    return tuple(cast(x, dtype) for x in operands)


def opmath(dtype: DTypeLike) -> np.dtype:
    """torch's "opmath", the dtype to compute in: float32 for float16 and bfloat16, else the dtype itself.

    Half types are widened inside an operator and rounded once.

    Example:
        >>> opmath(np.dtype("float16"))
        dtype('float32')
    """
    dtype = np.dtype(dtype)
    is_half = dtype.itemsize == 2 and kind_of(dtype) == "f"
    return np.dtype(np.float32) if is_half else dtype


@overload
def widen(*arrays: Array) -> tuple[Array, ...]: ...
@overload
def widen(*arrays: Array | None) -> tuple[Array | None, ...]: ...
def widen(*arrays: Array | None) -> tuple[Array | None, ...]:
    """Arrays in their opmath dtype, which the dispatch rounds the result back from. None stays None."""
    return tuple(None if x is None else x.astype(opmath(x.dtype)) for x in arrays)


def in_opmath(function: Callable[..., R]) -> Callable[..., R]:
    """Call a lowering with each float16 or bfloat16 array widened to its opmath dtype, without type promotion."""

    @functools.wraps(function)
    def widened(*args: object) -> R:
        return function(*(widen(a)[0] if isinstance(a, Array) else a for a in args))

    return widened
