"""Numbers that Python computes before each run: operands of the program, and those that a run returns or assigns."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import numpy as np
import torch

from ...dispatch.numbers import equals_only_itself
from ...storage.buffer import buffer_of, wrap
from ...storage.dtypes import to_numpy
from ...storage.transfer import put
from .host_number import Formula, Scalar
from .slots import Slot


class Computed:
    """A number that Python computes before each run.

    Args:
        formula: of the number.
        value: in the trace.

    Attributes:
        latest: the value for the next run.
    """

    def __init__(self, formula: Formula, value: Scalar):
        self.formula = formula
        self.kind, self.latest = type(value), value


class Operand(Computed):
    """A number that the program takes, as a 0-dim tensor.

    Args:
        formula, value: as for `Computed`.
        dtype: of the tensor.
    """

    def __init__(self, formula: Formula, value: Scalar, dtype: torch.dtype):
        super().__init__(formula, value)
        self.dtype = to_numpy(dtype)
        self._value = value
        array, spec = put(np.array(value, self.dtype))
        self.tensor = wrap(array, spec, (), dtype)

    def refresh(self, arrays: dict[Hashable, jax.Array]) -> None:
        """Give the program the latest value. `arrays`: those of this run, by value and dtype, which operands share."""
        if self.latest == self._value and equals_only_itself(self.latest):
            return
        self._value = self.latest
        key = repr(self.latest), self.dtype
        if key not in arrays:
            arrays[key] = put(np.array(self.latest, self.dtype))[0]
        buffer_of(self.tensor).array = arrays[key]


class Assigned(Computed):
    """A number that each run assigns to a slot."""

    def __init__(self, slot: Slot, formula: Formula, value: Scalar):
        super().__init__(formula, value)
        self.slot = slot

    def __call__(self) -> None:
        self.slot.set(self.latest)
