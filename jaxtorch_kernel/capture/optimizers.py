"""Optimizers inside a captured step.

`optimizer.step()` reads Python numbers that change between steps: the learning rate, which a scheduler sets, and the
step count, which torch keeps on the CPU. Tracing would turn them into constants. So while a step is traced (detected by
torch's own step hook), the learning rate is a tensor whose value is set from the group before each run, and the
optimizer runs with torch's `capturable=True`, with its count on the device. After the step the groups are restored, so
that other code still reads Python numbers. An optimizer that needs its learning rate as a number is traced with a
number (`rates=False`).
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..storage.buffer import Buffer, buffer_of, wrap
from ..storage.transfer import put
from .dependencies.guard import Change
from .dependencies.recorder import Recorder
from .dependencies.tokens import token
from .errors import CaptureError

Tensor = torch.Tensor


_values_of = dict.values


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
        """Read the group's current value."""
        optimizer = self.optimizer()
        if optimizer is None:
            return
        value = float(optimizer.param_groups[self.index]["lr"])
        if value != self.value:
            self.value = value
            self.cell.array = put(np.array(value, self.dtype))[0]


class Known:
    """An optimizer that the captured code used: what of it, beside its numbers, decides what it does."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.reference = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.numbers = [_numbers(group) for group in optimizer.param_groups]
        self.rates: set[int] = set()  # the groups whose learning rate is an operand
        self.settle()

    def changes(self) -> list[Change]:
        """The changes, in readable form."""
        optimizer = self.reference()
        if optimizer is None:
            return [Change(f"{self.name}", "there", None)]
        found = []
        if _look(optimizer) != self.look:
            found.append(
                Change(f"the parameters, state, hooks or step of {self.name}", "other", "new")
            )
        for i, (old, group) in enumerate(zip(self.numbers, optimizer.param_groups, strict=False)):
            new = _numbers(group)
            for name in old:
                if old[name] != new.get(name) and not (name == "lr" and i in self.rates):
                    path = f"{self.name}.param_groups[{i}][{name!r}]"
                    found.append(Change(path, token(old[name]), token(new.get(name))))
        return found

    def settle(self) -> None:
        """After the trace, make the state that its first step created a dependency of the program."""
        optimizer = self.reference()
        if optimizer is not None:
            self.look = _look(optimizer)
        self._names = [
            [name for name in numbers if not (name == "lr" and i in self.rates)]
            for i, numbers in enumerate(self.numbers)
        ]
        self._values = [
            [numbers[name] for name in names]
            for names, numbers in zip(self._names, self.numbers, strict=True)
        ]
        self._types = [list(map(type, values)) for values in self._values]
        groups = [] if optimizer is None else optimizer.param_groups
        self._tensors = list(map(_tensors, groups))
        self._sizes = list(map(len, groups))

    def holds(self) -> bool:
        """Whether it is as it was."""
        optimizer = self.reference()
        if optimizer is None or _look(optimizer) != self.look:
            return False
        groups = optimizer.param_groups
        try:
            now = [[g[n] for n in names] for g, names in zip(groups, self._names, strict=True)]
        except KeyError:
            return False
        # A tensor in the place of a number is no number, and must not be compared with one.
        if [list(map(type, values)) for values in now] != self._types or now != self._values:
            return False
        if any(self._tensors) and list(map(_tensors, groups)) != self._tensors:
            return False
        return list(map(len, groups)) == self._sizes

    def give_back(self) -> None:
        """Let the groups have the numbers that they had."""
        optimizer = self.reference()
        groups = [] if optimizer is None else optimizer.param_groups
        for old, group in zip(self.numbers, groups, strict=False):
            group.update(old)

    def changed_by(self) -> list[str]:
        """The numbers of the groups that the code itself changed."""
        optimizer = self.reference()
        groups = [] if optimizer is None else optimizer.param_groups
        return [
            f"{self.name}.param_groups[{i}][{name!r}]"
            for i, (old, group) in enumerate(zip(self.numbers, groups, strict=False))
            for name, value in old.items()
            if group.get(name) is not value and group.get(name) != value
        ]


def _tensors(group: dict[str, Any]) -> dict[str, int]:
    """The settings of a group that are tensors of the device, by identity: their values are read by the program."""
    found = {k: v for k, v in group.items() if isinstance(v, Tensor)}
    return {k: id(v) for k, v in found.items() if v.device.type == "jax"}


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    plain = (int, float, tuple, str, type(None))
    return {k: v for k, v in group.items() if k != "params" and isinstance(v, plain)}


def _kept(state: dict[Any, Any]) -> Iterable[Any]:
    """What an optimizer keeps of its parameters."""
    try:
        return [*chain.from_iterable(map(_values_of, state.values()))]
    except TypeError:  # of another library: a dictionary for each parameter is torch's way
        return chain.from_iterable(map(_parts, state.values()))


def _parts(state: Any) -> Iterable[Any]:
    if isinstance(state, dict):
        return state.values()
    return state if isinstance(state, list | tuple) else (state,)


def _look(optimizer: torch.optim.Optimizer) -> Any:
    """By identity: parameters, state, hooks, and a `step` that was put in the place of the class's."""
    own = vars(optimizer)
    return (
        [[*map(id, group["params"])] for group in optimizer.param_groups],
        [*map(id, _kept(optimizer.state))],
        id(own.get("step")),
        id(type(optimizer).step),
        [*map(id, own.get("_optimizer_step_pre_hooks", {}).values())],
        [*map(id, own.get("_optimizer_step_post_hooks", {}).values())],
    )


class Optimizers:
    """The optimizers that the code uses while a step is traced.

    Args:
        recorder: notified of the parameters of each.
        rates: whether learning rates are operands.
    """

    def __init__(self, recorder: Recorder | None = None, rates: bool = True) -> None:
        self._as_operands = rates
        self.rates: list[Rate] = []
        self.known: dict[int, Known] = {}
        self._recorder = recorder
        self._before: list[tuple[dict[str, Any], str, Any]] = []
        self._states: list[tuple[torch.optim.Optimizer, dict[Any, Any]]] = []
        self._prepared: dict[int, dict[int, Rate]] = {}
        self._thread = threading.get_ident()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Make every optimizer that steps ready for the trace; afterwards its groups are as they were.

        Where the trace fails, its state is as it was, too.
        """
        handles = (
            register_optimizer_step_pre_hook(self._prepare),
            register_optimizer_step_post_hook(self._give_back),
        )
        try:
            yield
        except BaseException:
            for optimizer, state in self._states:
                optimizer.state.clear()
                optimizer.state.update(state)
            self._give_back()
            for known in self.known.values():
                known.give_back()
            raise
        finally:
            for handle in handles:
                handle.remove()
            self._give_back()
            self._states.clear()
            if self._recorder is not None:
                for optimizer in self._recorder.optimizers.values():
                    self.known.setdefault(id(optimizer), Known(optimizer))
            for known in self.known.values():
                known.settle()
            self._recorder = None

    def refresh(self) -> None:
        """Update the program's learning rates."""
        for rate in self.rates:
            rate.refresh()

    def hold(self) -> bool:
        """Whether the optimizers are what they were."""
        return all(known.holds() for known in self.known.values())

    def changes(self) -> list[Change]:
        """The changes of the optimizers."""
        return [change for known in self.known.values() for change in known.changes()]

    def _prepare(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        known = self.known.setdefault(id(optimizer), Known(optimizer))
        first = id(optimizer) not in self._prepared
        rates = self._prepared.setdefault(id(optimizer), {})
        if first:
            self._states.append((optimizer, {p: copy.copy(s) for p, s in optimizer.state.items()}))
            if self._recorder is not None:
                self._recorder.uses(optimizer)
        for index, group in enumerate(optimizer.param_groups):
            if not any(p.device.type == "jax" for p in group["params"]):
                continue
            if "capturable" in group:
                self._set(group, "capturable", True)
            if self._as_operands and _takes_tensor_rate(optimizer) and _is_rate(group.get("lr")):
                if index not in rates:
                    rates[index] = Rate(optimizer, index)
                    self.rates.append(rates[index])
                    known.rates.add(index)
                self._set(group, "lr", rates[index].tensor)
            if first:
                _move_counts(optimizer, group)

    def _give_back(self, *_: Any) -> None:
        """Let the groups be as they were."""
        if threading.get_ident() != self._thread:
            return
        for group, name, value in reversed(self._before):
            group[name] = value
        self._before.clear()

    def _set(self, group: dict[str, Any], name: str, value: Any) -> None:
        self._before.append((group, name, group[name]))
        group[name] = value

    def check(self, written: list[Any]) -> None:
        """Refuse a step that sets its own learning rate, or another number of its optimizer. Called in the trace.

        Raises:
            CaptureError: if the step wrote the cell of a learning rate, or a number has changed.
        """
        for known in self.known.values():
            for path in known.changed_by():
                raise CaptureError(
                    f"captured code changes {path}, but its Python runs only once",
                    "Change it outside the captured code (call scheduler.step() after the captured step).",
                )
        for rate in self.rates:
            if any(cell is rate.cell for cell in written):
                raise CaptureError(
                    "captured code steps a scheduler, but its Python runs only once",
                    "Call scheduler.step() outside, after the captured step.",
                )


def _is_rate(value: Any) -> bool:
    """Whether a learning rate can be read as a number at each run."""
    return isinstance(value, float) or (
        isinstance(value, Tensor) and value.device.type == "cpu" and not value.dim()
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
        for name, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.dim():
                # Not by `to`, in the trace: what the trace makes of nothing is a constant of the program.
                array, spec = put(value.detach().numpy())
                state[name] = wrap(array, spec, (), value.dtype)
