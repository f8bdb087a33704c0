"""Learning rates that a captured step reads from the groups of its optimizers at each run."""

from __future__ import annotations

import weakref

import numpy as np
import torch

from ..storage.buffer import Buffer, buffer_of, wrap
from ..storage.transfer import put


class Rate:
    """A learning rate that a program takes as an operand: read from its group before each run."""

    def __init__(self, optimizer: torch.optim.Optimizer, index: int):
        self.optimizer = weakref.ref(optimizer)
        self.index = index
        group = optimizer.param_groups[index]
        self.value = float(group["lr"])
        wide = any(p.dtype.to_real() == torch.float64 for p in group["params"])
        self.dtype = np.dtype(np.float64 if wide else np.float32)
        array, spec = put(np.array(self.value, self.dtype))
        self.tensor = wrap(array, spec, (), torch.float64 if wide else torch.float32)

    @property
    def buffer(self) -> Buffer:
        """The buffer that the program reads."""
        return buffer_of(self.tensor)

    def refresh(self) -> None:
        """Read the group's current value."""
        optimizer = self.optimizer()
        if optimizer is None:
            return
        value = float(optimizer.param_groups[self.index]["lr"])
        if value != self.value:
            self.value = value
            self.buffer.array = put(np.array(value, self.dtype))[0]
