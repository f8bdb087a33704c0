"""The types of what lowerings take and return."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.typing import DTypeLike

Array = jax.Array
Arrays = list[Array]
Pair = tuple[Array, Array]
# One gradient for each differentiable argument, or None if it is not requested.
Gradients = tuple[Array | None, ...]
Function = Callable[..., Array]
# What `dim` may be: one dimension, several, or all.
Dims = int | Sequence[int] | None
# One number for every spatial dimension, or one for each.
Ints = int | Sequence[int]
# A subscript `x[...]` that indexes some dimensions by arrays.
Subscript = tuple[slice | Array, ...]


class Number:
    """A Python number passed to an operator, or a 0-dim CPU tensor passed to an elementwise one.

    It is a 0-dim array of unknown value. Other operators take a 0-dim CPU tensor as an array.

    It deliberately has no arithmetic: `promote` it with the tensors it is combined with, or call `as_dtype`.

    Attributes:
        value: a 0-dim JAX array (float64, int64 or complex128).
        kind: "b", "i", "f" or "c", NumPy's letters.
        dtype: the NumPy dtype of a 0-dim CPU tensor, which ranks as a tensor without dimensions; None for a number.
        note: called with every dtype that the number is cast to; later calls check that their value fits these dtypes.
    """

    __slots__ = ("dtype", "kind", "note", "value")

    def __init__(
        self,
        value: Array,
        kind: str,
        dtype: np.dtype | None = None,
        note: Callable[[np.dtype], None] | None = None,
    ):
        self.value, self.kind, self.dtype, self.note = value, kind, dtype, note

    def as_dtype(self, dtype: DTypeLike) -> Array:
        """The number as a 0-dim array of `dtype`."""
        value = self.value
        if self.note is not None:
            self.note(np.dtype(dtype))
        if self.kind == "c" and np.dtype(dtype).kind != "c":
            value = value.real
        return value.astype(dtype)


# A `Scalar` or `float` of the schema: a run-time operand, or a Python number if it is a default or static.
Scalar = Number | complex
# An operand of elementwise arithmetic: a 0-dim CPU tensor arrives as a Number.
Operand = Array | Scalar
