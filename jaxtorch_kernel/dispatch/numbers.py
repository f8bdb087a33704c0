"""Scalars as run-time operands: one small device vector for each kind of number in a call.

Vectors are cached by value: `x * 2.0` in a loop transfers once. A learning rate that changes every step costs one
transfer of eight bytes but never a compilation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from ..storage.dtypes import row_of
from ..storage.placement import everywhere
from ..storage.transfer import put

KINDS = {"f": np.dtype(np.float64), "i": np.dtype(np.int64), "c": np.dtype(np.complex128)}


@lru_cache(maxsize=512)
def _operand(kind: str, values: tuple[Any, ...], signs: Any, where: Any) -> Any:
    return put(np.array(values, KINDS[kind]), everywhere(where))[0]


def operand(kind: str, values: tuple[Any, ...], where: Any) -> Any:
    """The vector of these numbers, placed as `where` (a sharding) says.

    Raises:
        RuntimeError: an integer does not fit 64 bits.
    """
    # 0.0 == -0.0 and NaN != NaN: the first must not be confused, the second would never be found.
    signs = None
    if kind != "i" and any(v == 0 or v != v for v in values):
        signs = str(values)
    try:
        return _operand(kind, values, signs, where)
    except OverflowError:
        raise RuntimeError(
            f"value cannot be converted to int64 without overflow: {values}"
        ) from None


def number_operands(kinds: list[str], numbers: list[tuple[str, Any]], where: Any) -> list[Any]:
    """One vector for each kind of number, placed as `where` says; NumPy arrays where it is None (in a trace)."""
    result = []
    for kind in kinds:
        values = tuple([v for k, v in numbers if k == kind])
        result.append(
            np.array(values, KINDS[kind]) if where is None else operand(kind, values, where)
        )
    return result


def limits(dtype: np.dtype) -> tuple[float, float, str] | None:
    """The smallest and largest number that converts to a dtype without overflow, and the type's name in torch's error.

    None if every number converts.
    """
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min, info.max, "int" if dtype == np.int32 else f"{dtype.name}_t"
    row = row_of(dtype)
    part = np.zeros((), dtype).real.dtype  # of a complex number
    if row is None or part == np.bool_ or part == np.float64:
        return None
    range_ = ml_dtypes.finfo(part)
    return float(range_.min), float(range_.max), row.c_name


def check_limits(
    bounds: set[tuple[int, float, float, str]], numbers: list[tuple[str, Any]]
) -> None:
    """Raise torch's error if a Scalar does not fit the dtype that it is cast to.

    Raises:
        RuntimeError: a number does not fit; the message names the type.
    """
    for position, low, high, name in bounds:
        value = numbers[position][1]
        if low >= 0 and type(value) is not float:
            low = -high  # negative integers wrap into unsigned types, as in C
        if type(value) is complex or low <= value <= high:
            continue
        # Floats (whose bounds are floats) can be infinite or NaN, integers cannot.
        if type(low) is int or math.isfinite(value):
            raise RuntimeError(f"value cannot be converted to type {name} without overflow")
