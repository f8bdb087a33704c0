"""Scalars as run-time operands: one small device vector for each kind of number in a call.

Vectors are cached by value: `x * 2.0` in a loop transfers once. A learning rate that changes every step costs one
transfer of eight bytes, never a compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..storage import placement
from ..storage.transfer import put

KINDS = {"f": np.dtype(np.float64), "i": np.dtype(np.int64), "c": np.dtype(np.complex128)}


@lru_cache(maxsize=4096)
def _operand(kind: str, values: tuple[Any, ...], signs: Any, device: int) -> Any:
    return put(np.array(values, KINDS[kind]))[0]


def operand(kind: str, values: tuple[Any, ...]) -> Any:
    """The vector of these numbers on the current device.

    Raises:
        RuntimeError: an integer does not fit 64 bits.
    """
    # 0.0 == -0.0 and NaN != NaN: the first must not be confused, the second would never be found.
    signs = None
    if kind != "i" and any(v == 0 or v != v for v in values):
        signs = str(values)
    try:
        return _operand(kind, values, signs, placement.index())
    except OverflowError:
        raise RuntimeError(f"value cannot be converted to int64 without overflow: {values}") from None


def number_operands(
    kinds: list[str], numbers: list[tuple[str, Any]], make: Callable[..., Any] | None = None
) -> list[Any]:
    """One vector for each kind of number; `make(values, dtype)` where they must not be device arrays."""
    result = []
    for kind in kinds:
        values = tuple([v for k, v in numbers if k == kind])
        result.append(operand(kind, values) if make is None else make(values, KINDS[kind]))
    return result
