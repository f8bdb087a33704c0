"""Python numbers among the arguments: static at first, operands once they change.

A number is part of the key until another value comes in the same place; from then on it is a 0-dim tensor to the code
and an operand to the program, so that a number that changes every call is traced twice and not every time (as
`torch.compile` does it with sizes). Where the code needs the number's value, such as the loop over `range(n)`, the
trace fails and the number stays static. A bool is always static.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..storage.buffer import wrap_sized
from ..storage.dtypes import to_numpy
from ..storage.transfer import put

Tensor = torch.Tensor


class Numbers:
    """Which numbers of one function are operands, for each structure of its arguments."""

    def __init__(self) -> None:
        self._first: dict[Any, dict[int, Any]] = {}  # structure -> place -> the first value
        self._moving: dict[Any, set[int]] = {}
        self._fixed: dict[Any, set[int]] = {}  # tried as operands, and the code needs their values

    def substitute(self, structure: Any, leaves: list[Any], static: set[int]) -> set[int]:
        """Put tensors in the place of the numbers that are operands; returns their places. `static` ones never are."""
        numbers = {
            i: leaf
            for i, leaf in enumerate(leaves)
            if type(leaf) in (int, float) and i not in static
        }
        if not numbers:
            return set()
        first = self._first.setdefault(structure, dict(numbers))
        fixed = self._fixed.get(structure, set())
        moving = self._moving.setdefault(structure, set())
        for i, value in numbers.items():
            old = first.setdefault(i, value)
            if i not in fixed and (type(old) is not type(value) or old != value):
                moving.add(i)
        wide = any(
            isinstance(t, Tensor) and t.dtype.itemsize >= 8 and t.is_floating_point()
            for t in leaves
        )
        moving = moving & numbers.keys()
        for i in moving:
            leaves[i] = _tensor(leaves[i], _dtype_of(leaves[i], wide))
        return moving

    def fix(self, structure: Any) -> bool:
        """Make every operand static again; False where there is none."""
        moving = self._moving.pop(structure, set())
        self._fixed.setdefault(structure, set()).update(moving)
        return bool(moving)


def _dtype_of(value: Any, wide: bool) -> torch.dtype:
    # The dtype with which a 0-dim tensor promotes as the Python number does.
    if isinstance(value, int):
        return torch.int64
    return torch.float64 if wide else torch.get_default_dtype()


@lru_cache(maxsize=256)
def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    array, spec = put(np.array(value, to_numpy(dtype)))
    return wrap_sized(array, spec, (), dtype)
