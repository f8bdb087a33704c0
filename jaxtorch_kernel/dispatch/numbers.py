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


# What torch calls the types in its message.
_C_NAMES = {
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int",
    "int64": "int64_t",
    "float32": "float",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
}


def limits(dtype: np.dtype) -> tuple[float, float, str] | None:
    """The smallest and largest number that converts to a dtype without overflow; None where all do."""
    name = _C_NAMES.get(dtype.name)
    if name is None:
        return None
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        # Negative numbers wrap into unsigned types, as in C.
        return (-info.max if dtype.kind == "u" else info.min), info.max, name
    largest = float(ml_dtypes.finfo(dtype).max)
    return -largest, largest, name


def check_limits(
    bounds: set[tuple[int, float, float, str]], numbers: list[tuple[str, Any]]
) -> None:
    """Raise as torch does where a Scalar does not fit the dtype it is cast to.

    Raises:
        RuntimeError: naming the type.
    """
    for position, low, high, name in bounds:
        value = numbers[position][1]
        if name == "uint8_t" and type(value) is float:
            low = 0  # only integers wrap
        if type(value) is complex or low <= value <= high:
            continue
        # Infinity and NaN are values of floats (whose bounds are floats), and none of integers.
        if type(low) is int or math.isfinite(value):
            raise RuntimeError(f"value cannot be converted to type {name} without overflow")
