"""torch's type promotion, for lowerings.

torch ranks operands in three classes: tensors with dimensions, tensors without, and plain numbers. A class
decides only where its category (bool < int < float < complex) is higher than that of the classes before it; JAX's
lattice differs (int32 + 1.5 is float64 there under x64, float32 here), so no lowering may rely on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..storage.dtypes import to_numpy, to_torch

R = TypeVar("R")


class Number:
    """A Python number, or a 0-dim CPU tensor, given to an operator: a 0-dim array of unknown value.

    It has no arithmetic on purpose: `promote` it beside the tensors it meets, or take `as_dtype`.

    Attributes:
        value: a 0-dim JAX array (float64, int64 or complex128).
        kind: "b", "i", "f" or "c", NumPy's letters.
        dtype: for a 0-dim CPU tensor its NumPy dtype, which ranks as a tensor without dimensions; else None.
        note: called with every dtype that the number is cast to, because its value must fit them at each call.
    """

    __slots__ = ("dtype", "kind", "note", "value")

    def __init__(
        self,
        value: Any,
        kind: str,
        dtype: np.dtype | None = None,
        note: Callable[[np.dtype], None] | None = None,
    ):
        self.value, self.kind, self.dtype, self.note = value, kind, dtype, note

    def as_dtype(self, dtype: Any) -> jax.Array:
        """The number as a 0-dim array of `dtype`."""
        value = self.value
        if self.note is not None:
            self.note(np.dtype(dtype))
        if self.kind == "c" and np.dtype(dtype).kind != "c":
            value = value.real
        return value.astype(dtype)


Operand = Any  # a JAX array, a Number, or a Python number

_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def kind_of(dtype: Any) -> str:
    """ "b", "i", "f" or "c": the category of a NumPy or ml_dtypes dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind in "bifc":
        return dtype.kind
    return "i" if dtype.kind == "u" else "f"


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
    """The dtype that torch would compute these operands in."""
    classes: list[torch.dtype | None] = [None, None, None]

    def add(rank: int, dtype: torch.dtype) -> None:
        old = classes[rank]
        classes[rank] = dtype if old is None else torch.promote_types(old, dtype)

    for x in operands:
        if x is None:
            continue
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
        elif _RANK[kind_of(to_numpy(dtype))] > _RANK[kind_of(to_numpy(result))]:
            result = torch.promote_types(result, dtype)
    assert result is not None
    return to_numpy(result)


def convert(x: jax.Array, dtype: Any) -> jax.Array:
    """An array in another dtype as torch converts: complex drops the imaginary part, float8_e4m3fn saturates."""
    if x.dtype == dtype:
        return x
    dtype = np.dtype(dtype)
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    if dtype == np.dtype(jnp.float8_e4m3fn):
        largest = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -largest, largest)
    return x.astype(dtype)


def cast(x: Operand, dtype: Any) -> jax.Array:
    """One operand, of whatever sort, as an array of `dtype`."""
    if isinstance(x, Number):
        return x.as_dtype(dtype)
    if isinstance(x, bool | int | float | complex):
        return jnp.asarray(x, dtype)
    return convert(x, dtype)


def promote(*operands: Operand) -> tuple[Any, ...]:
    """The operands as arrays of their common dtype. None stays None."""
    dtype = result_dtype(*operands)
    return tuple(x if x is None else cast(x, dtype) for x in operands)


def promote_float(*operands: Operand) -> tuple[Any, ...]:
    """As `promote`, integers and bools becoming the default float dtype."""
    dtype = result_dtype(*operands)
    if kind_of(dtype) in "bi":
        dtype = default_dtype()
    return tuple(x if x is None else cast(x, dtype) for x in operands)


# The dtype to compute in: torch's "opmath". Half types are widened inside an operator and rounded once.
_OPMATH = {"float16": np.dtype(np.float32), "bfloat16": np.dtype(np.float32)}


def opmath(dtype: Any) -> np.dtype:
    """float32 for float16 and bfloat16, else the dtype itself.

    Example:
        >>> opmath(np.dtype("float16"))
        dtype('float32')
    """
    dtype = np.dtype(dtype)
    return _OPMATH.get(dtype.name, dtype)


def widen(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Arrays in their opmath dtype; the caller's result is rounded back by the dispatch."""
    return tuple(x if x is None else x.astype(opmath(x.dtype)) for x in arrays)


def in_opmath(function: Callable[..., R]) -> Callable[..., R]:
    """A lowering whose float16 and bfloat16 arrays arrive widened, each in its own opmath; nothing is promoted."""

    @functools.wraps(function)
    def wide(*args: Any) -> R:
        return function(*(widen(a)[0] if isinstance(a, jax.Array) else a for a in args))

    return wide
