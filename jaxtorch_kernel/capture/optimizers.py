"""Optimizers inside a captured step.

`optimizer.step()` reads Python numbers that change between steps: the learning rate that a scheduler sets, and the step
count, which torch keeps on the CPU. Traced as they are they would be constants. While a step is traced (torch's own
step hook tells), the learning rate is a tensor whose value is set before each run from the group, and the optimizer
works as torch's `capturable=True` has it, with its count on the device. The groups are given back as they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..storage.buffer import Buffer, buffer_of, wrap
from ..storage.transfer import put
from .errors import CaptureError


class Rate:
    """A learning rate that a program takes as an operand: read from its group before each run."""

    def __init__(self, optimizer: torch.optim.Optimizer, index: int):
        self.optimizer = weakref.ref(optimizer)
        self.index = index
        group = optimizer.param_groups[index]
        self.value = float(group["lr"])
        wide = any(p.dtype.to_real() == torch.float64 for p in group["params"])
        self.dtype: Any = np.float64 if wide else np.float32
        array, spec = put(np.array(self.value, self.dtype))
        self.tensor = wrap(array, spec, (), torch.float64 if wide else torch.float32)

    @property
    def cell(self) -> Buffer:
        """Where the program reads it."""
        return buffer_of(self.tensor)

    def refresh(self) -> None:
        """Take the group's value of now."""
        optimizer = self.optimizer()
        if optimizer is None:
            return
        value = float(optimizer.param_groups[self.index]["lr"])
        if value != self.value:
            self.value = value
            self.cell.array = put(np.array(value, self.dtype))[0]


class Optimizers:
    """The optimizers that stepped while a step was traced."""

    def __init__(self) -> None:
        self.rates: list[Rate] = []
        self.numbers: list[tuple[weakref.ref[Any], int, dict[str, Any]]] = []
        self._before: list[tuple[dict[str, Any], str, Any]] = []
        self._known: set[int] = set()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Make every optimizer that steps ready for the trace; afterwards its groups are as they were."""
        handle = register_optimizer_step_pre_hook(self._prepare)
        try:
            yield
        finally:
            handle.remove()
            for group, name, value in reversed(self._before):
                group[name] = value
            self._before.clear()

    def hold(self) -> bool:
        """Whether the numbers of the groups (weight decay, betas) are what they were."""
        for reference, index, numbers in self.numbers:
            optimizer = reference()
            if optimizer is None:
                return False
            group = optimizer.param_groups[index]
            if any(group.get(name) != value for name, value in numbers.items()):
                return False
        return True

    def _prepare(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) in self._known:
            return
        self._known.add(id(optimizer))
        for index, group in enumerate(optimizer.param_groups):
            numbers = {k: v for k, v in group.items() if isinstance(v, int | float | tuple)}
            if any(p.device.type == "jax" for p in group["params"]):
                if "capturable" in group:
                    self._set(group, "capturable", True)
                if _takes_tensor_rate(optimizer) and isinstance(group.get("lr"), float):
                    rate = Rate(optimizer, index)
                    self.rates.append(rate)
                    self._set(group, "lr", rate.tensor)
                    numbers.pop("lr")
                _move_counts(optimizer, group)
            numbers.pop("capturable", None)
            self.numbers.append((weakref.ref(optimizer), index, numbers))

    def _set(self, group: dict[str, Any], name: str, value: Any) -> None:
        self._before.append((group, name, group[name]))
        group[name] = value

    def check_rates(self, written: list[Any]) -> None:
        """Refuse a step that sets its own learning rate.

        Raises:
            CaptureError: one of the cells that the step wrote is a rate's.
        """
        for rate in self.rates:
            if any(cell is rate.cell for cell in written):
                raise CaptureError(
                    "a scheduler stepped inside captured code, which runs its Python once",
                    "Call scheduler.step() after it, outside.",
                )


def _takes_tensor_rate(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` computes with a learning rate that is a tensor."""
    return (
        isinstance(optimizer, torch.optim.SGD)
        or "capturable" in optimizer.defaults
        or getattr(optimizer, "takes_tensor_rate", False)
    )


def _move_counts(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Put what the optimizer counts on the CPU onto the device, where the program can count on."""
    for p in group["params"]:
        state = optimizer.state.get(p, {})
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.dim():
                state[name] = value.to(p.device)
