"""Python numbers among the arguments: static at first, operands once they change.

A number is part of the key until a call passes a different value in its place. From then on it is an operand of the
program, so that a number that changes at every call causes two traces, not one per call (as `torch.compile` does for
sizes). The code then receives a `Number`, which can be added to, subtracted from, multiplied with or divided by a
floating-point tensor like the Python number. Any other use (`range(n)`, `2 ** n`, `n in table`) needs its value: the
trace fails, and the number stays static. A bool is always static.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..base import torch_private as private
from ..storage.buffer import wrap_sized
from ..storage.dtypes import to_numpy
from ..storage.transfer import put
from .errors import CaptureError

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
            if i not in fixed and (type(old) is not type(value) or repr(old) != repr(value)):
                moving.add(i)
        wide = any(
            isinstance(t, Tensor) and t.dtype.itemsize >= 8 and t.is_floating_point()
            for t in leaves
        )
        moving = {i for i in moving & numbers.keys() if _fits(leaves[i])}
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


def _fits(value: Any) -> bool:
    return isinstance(value, float) or -(2**63) <= value < 2**63


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    kind: Any = type(value)
    return _cached(repr(value), kind, dtype)  # by its digits: -0.0 is not 0.0


@lru_cache(maxsize=256)
def _cached(text: str, kind: type, dtype: torch.dtype) -> Tensor:
    array, spec = put(np.array(kind(text), to_numpy(dtype)))
    return wrap_sized(array, spec, (), dtype)


_ARITHMETIC = frozenset(
    name
    for base in (
        "add",
        "sub",
        "mul",
        "div",
        "truediv",
        "true_divide",
        "subtract",
        "multiply",
        "divide",
    )
    for name in (base, f"{base}_", f"__{base}__", f"__r{base}__", f"__i{base}__", "rsub")
)
_EXACT = (
    torch.float32,
    torch.float64,
)  # a number is rounded to these before it is used, also by the CPU


class Number(Tensor):
    """A Python number that is an operand, as the traced code sees it."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        others = [a for a in args if isinstance(a, Tensor) and type(a) is not cls]
        name = getattr(function, "__name__", "")
        if name in _ARITHMETIC and len(others) == 1 and others[0].dtype in _EXACT and not kwargs:
            dtype = others[0].dtype
            with private.without_torch_function():
                return function(*[a.detach().to(dtype) if type(a) is cls else a for a in args])
        raise NeedsNumber()

    def __hash__(self) -> int:
        raise NeedsNumber()

    def __getattr__(self, name: str) -> Any:  # of a number that a tensor does not have
        raise NeedsNumber()

    def _needs(self, *_: Any) -> Any:
        raise NeedsNumber()

    __round__ = __trunc__ = __floor__ = __ceil__ = __index__ = _needs
    __divmod__ = __rdivmod__ = __int__ = __float__ = __bool__ = __complex__ = _needs

    @property  # type: ignore[misc]  # it can be written elsewhere
    def __class__(self) -> Any:  # `isinstance(k, int)` asks for it
        raise NeedsNumber()


class NeedsNumber(CaptureError):
    """The code needs the value of a number that became an operand."""

    def __init__(self) -> None:
        super().__init__("the code asked for the value of a number", "Name it in static_argnames.")


def number(tensor: Tensor) -> Number:
    """A 0-dim tensor, as the Number that the code gets."""
    return torch.Tensor._make_subclass(Number, tensor)
