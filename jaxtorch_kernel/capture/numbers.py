"""Python numbers among the arguments: static at first, operands once they vary.

A number is part of the key until a call passes a different value for it. From then on it is an operand of the program,
so that a number that changes at every call causes two traces, not one per call (as `torch.compile` does for sizes). The
code then receives a `Number`, which can be added to, subtracted from, multiplied with or divided by a floating-point
tensor like the Python number. Any other use (`range(n)`, `2 ** n`, `n in table`) needs its value: the trace fails, and
the number stays static. A bool is always static.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NoReturn

import numpy as np
import torch

from ..base import torch_private as private
from ..base.torch_private import pytree
from ..storage.buffer import wrap_sized
from ..storage.dtypes import to_numpy
from ..storage.transfer import put
from .errors import CaptureError

Tensor = torch.Tensor


class Numbers:
    """Which numbers of one function are operands, for each structure of its arguments."""

    def __init__(self) -> None:
        # By the structure of the arguments: the first value of each number, by its index among the leaves; the
        # indices of numbers that vary; the indices of those that were operands until the code needed their values.
        self._first: dict[pytree.TreeSpec, dict[int, int | float]] = {}
        self._varying: dict[pytree.TreeSpec, set[int]] = {}
        self._fixed: dict[pytree.TreeSpec, set[int]] = {}

    def substitute(
        self, structure: pytree.TreeSpec, leaves: list[object], static: set[int]
    ) -> set[int]:
        """Replace the numbers that are operands by tensors; returns their indices. `static`: never operands."""
        numbers = {
            i: leaf
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, int | float) and type(leaf) in (int, float) and i not in static
        }
        if not numbers:
            return set()
        first = self._first.setdefault(structure, dict(numbers))
        fixed = self._fixed.get(structure, set())
        varying = self._varying.setdefault(structure, set())
        for i, value in numbers.items():
            old = first.setdefault(i, value)
            if i not in fixed and (type(old) is not type(value) or repr(old) != repr(value)):
                varying.add(i)
        wide = any(
            isinstance(t, Tensor) and t.dtype.itemsize >= 8 and t.is_floating_point()
            for t in leaves
        )
        operands = {i for i in varying & numbers.keys() if _fits(numbers[i])}
        for i in operands:
            leaves[i] = _tensor(numbers[i], _dtype_of(numbers[i], wide))
        return operands

    def fix(self, structure: pytree.TreeSpec) -> bool:
        """Make every operand static again; False if there is none."""
        varying = self._varying.pop(structure, set())
        self._fixed.setdefault(structure, set()).update(varying)
        return bool(varying)


def _dtype_of(value: int | float, wide: bool) -> torch.dtype:
    # The dtype with which a 0-dim tensor promotes as the Python number does.
    if isinstance(value, int):
        return torch.int64
    return torch.float64 if wide else torch.get_default_dtype()


def _fits(value: int | float) -> bool:
    return isinstance(value, float) or -(2**63) <= value < 2**63


def _tensor(value: int | float, dtype: torch.dtype) -> Tensor:
    kind: type = type(value)
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
# The CPU, too, rounds a number to one of these dtypes before it uses the number.
_EXACT = (torch.float32, torch.float64)


class Number(Tensor):
    """A Python number that is an operand, in the form that the traced code gets."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
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

    def __getattr__(self, name: str) -> NoReturn:  # an attribute of numbers that tensors lack
        raise NeedsNumber()

    def _refuse(self, *_: object) -> NoReturn:
        raise NeedsNumber()

    __round__ = __trunc__ = __floor__ = __ceil__ = __index__ = _refuse
    __divmod__ = __rdivmod__ = __int__ = __float__ = __bool__ = __complex__ = _refuse

    @property  # type: ignore[misc]  # `object` has a setter too
    def __class__(self) -> type[Number]:  # read by `isinstance(k, int)`
        raise NeedsNumber()


class NeedsNumber(CaptureError):
    """The code needs the value of a number that became an operand."""

    def __init__(self) -> None:
        super().__init__("the code asked for the value of a number", "Name it in static_argnames.")


def number(tensor: Tensor) -> Number:
    """The Number over a 0-dim tensor."""
    return torch.Tensor._make_subclass(Number, tensor)
