"""Learning rates that a captured step reads from the groups of its optimizers at each run."""

from __future__ import annotations

import weakref
from collections.abc import Hashable

import jax
import torch

from ..storage.buffer import Buffer, buffer_of
from .dependencies.computed import Operand
from .dependencies.host_number import Formula


class Rate(Operand):
    """A learning rate that a program takes as an operand: read from its group before each run."""

    def __init__(self, optimizer: torch.optim.Optimizer, index: int):
        self.optimizer = weakref.ref(optimizer)
        self.index = index
        group = optimizer.param_groups[index]
        wide = any(p.dtype.to_real() == torch.float64 for p in group["params"])
        dtype = torch.float64 if wide else torch.float32
        super().__init__(Formula(self._read, ()), float(group["lr"]), dtype)

    @property
    def buffer(self) -> Buffer:
        """The buffer that the program reads."""
        return buffer_of(self.tensor)

    def refresh(self, arrays: dict[Hashable, jax.Array]) -> None:
        self.latest = self._read()
        super().refresh(arrays)

    def _read(self) -> float:
        optimizer = self.optimizer()
        return self.latest if optimizer is None else float(optimizer.param_groups[self.index]["lr"])
