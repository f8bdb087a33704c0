"""Scalars as run-time operands: one small device vector for each kind of number in a call.

Vectors are cached by value: `x * 2.0` in a loop transfers once. A learning rate that changes at every step costs one
transfer of eight bytes but never a compilation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Sharding

from ..storage.dtypes import row_of
from ..storage.placement import replicated
from ..storage.transfer import put

Scalar = int | float | complex
KindedNumber = tuple[str, Scalar]  # the kind, and the number
Bound = tuple[
    int, float, float, str
]  # index of a number, smallest and largest value, torch's name of the dtype

# The kinds of numbers, each with the dtype of its operand.
KINDS = {"f": np.dtype(np.float64), "i": np.dtype(np.int64), "c": np.dtype(np.complex128)}


@lru_cache(maxsize=512)
def _operand(
    kind: str, values: tuple[Scalar, ...], text: str | None, sharding: Sharding
) -> jax.Array:
    return put(np.array(values, KINDS[kind]), replicated(sharding))[0]


def equals_only_itself(value: Scalar) -> bool:
    """Whether all numbers of its class that equal this one are the same to the last bit; others are compared as text.

    Zero has two signs, also as a part of a complex number, and NaN does not equal itself.
    """
    return bool(value) and value == value and value.__class__ is not complex


def operand(kind: str, values: tuple[Scalar, ...], sharding: Sharding) -> jax.Array:
    """The vector of these numbers, replicated over the devices of a sharding.

    Raises:
        RuntimeError: an integer does not fit 64 bits.
    """
    text = None if kind == "i" or all(map(equals_only_itself, values)) else str(values)
    try:
        return _operand(kind, values, text, sharding)
    except OverflowError:
        raise RuntimeError(
            f"value cannot be converted to int64 without overflow: {values}"
        ) from None


def number_operands(
    kinds: Iterable[str], numbers: Sequence[KindedNumber], sharding: Sharding
) -> list[jax.Array]:
    """One vector for each kind of number."""
    return [operand(kind, _of_kind(kind, numbers), sharding) for kind in kinds]


def number_constants(kinds: Iterable[str], numbers: Sequence[KindedNumber]) -> list[np.ndarray]:
    """The same as constants of a trace."""
    return [np.array(_of_kind(kind, numbers), KINDS[kind]) for kind in kinds]


def _of_kind(kind: str, numbers: Sequence[KindedNumber]) -> tuple[Scalar, ...]:
    return tuple([value for k, value in numbers if k == kind])


def limits(dtype: np.dtype) -> tuple[float, float, str] | None:
    """The smallest and largest number that converts to a dtype without overflow, and torch's name of the dtype.

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


def check_bounds(bounds: Iterable[Bound], numbers: Sequence[KindedNumber]) -> None:
    """Raise torch's error if a Scalar does not fit the dtype that it is cast to.

    Raises:
        RuntimeError: a number does not fit; the message names the type.
    """
    for position, low, high, name in bounds:
        value = numbers[position][1]
        if low >= 0 and type(value) is not float:
            low = -high  # negative integers wrap into unsigned types, as in C
        if isinstance(value, complex) or low <= value <= high:
            continue
        # Floats (whose bounds are floats) can be infinite or NaN, integers cannot.
        if type(low) is int or math.isfinite(value):
            raise RuntimeError(f"value cannot be converted to type {name} without overflow")
