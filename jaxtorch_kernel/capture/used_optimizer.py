"""An optimizer that captured code used, and everything that decides what it does."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..programs.trees import is_device_tensor
from .dependencies.guard import Change
from .dependencies.host_number import HostNumber, holds_host_number
from .dependencies.slots import Slot
from .dependencies.tokens import token
from .dependencies.varied import is_numeric
from .errors import CaptureError
from .optimizer_state import state_values

Group = dict[str, Any]  # a parameter group: `params`, and the settings of the optimizer's class

# Those in the state of an optimizer have guards where the code reads them; that they are there counts here.
_NUMBERS = frozenset((int, float, HostNumber))


class UsedOptimizer:
    """An optimizer that the captured code used, with everything that decides what it does.

    Attributes:
        reference: a weak reference to it.
        numbers: the settings of each group that are plain values, before the trace.
        current: the same, as the optimizer's own steps have left them.
        rates: the groups whose learning rate is an operand.
        identities: of its parameters, state and hooks.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.reference = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.numbers = [_numbers(group) for group in optimizer.param_groups]
        self.current = self.numbers
        self.rates: set[int] = set()
        self._all = list(map(set, optimizer.param_groups))
        self._sizes = list(map(len, self._all))
        self.settle()

    def changes(self) -> list[Change]:
        """The changes since the trace."""
        optimizer = self.reference()
        if optimizer is None:
            return [Change(f"{self.name}", "there", None)]
        changes = []
        if _identities(optimizer) != self.identities:
            changes.append(
                Change(f"the parameters, state, hooks or step of {self.name}", "other", "new")
            )
        for i, (old, group) in enumerate(zip(self.numbers, optimizer.param_groups, strict=False)):
            new = _numbers(group)
            for name in old:
                if old[name] != new.get(name) and not (name == "lr" and i in self.rates):
                    path = f"{self.name}.param_groups[{i}][{name!r}]"
                    changes.append(Change(path, token(old[name]), token(new.get(name))))
        return changes

    def varied(self) -> list[Slot]:
        """The settings of groups that are other numbers than in the trace, or tuples of other numbers.

        With one of them, the group's learning rate: torch's code for such settings takes no tensor in its place.
        """
        slots = []
        for i, (old, group) in enumerate(zip(self.numbers, self._groups(), strict=False)):
            names = {
                name
                for name, value in old.items()
                if not (name == "lr" and i in self.rates) and _is_other(value, group.get(name))
            }
            if names and is_numeric(group.get("lr")):
                names.add("lr")
            for name in sorted(names):
                path = f"{self.name}.param_groups[{i}][{name!r}]"
                slots.append(Slot.item(group, name, path))
        return slots

    def settle(self) -> None:
        """After the trace, make the state that its first step created a dependency of the program."""
        optimizer = self.reference()
        if optimizer is not None:
            self.identities = _identities(optimizer)
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

    def holds(self) -> bool:
        """Whether nothing has changed since the trace."""
        optimizer = self.reference()
        if optimizer is None or _identities(optimizer) != self.identities:
            return False
        groups = optimizer.param_groups
        try:
            now = [[g[n] for n in names] for g, names in zip(groups, self._names, strict=True)]
        except KeyError:
            return False
        # Types first: comparing a number with a tensor that has replaced one would give a tensor.
        if [list(map(type, values)) for values in now] != self._types or now != self._values:
            return False
        if any(self._tensors) and list(map(_tensors, groups)) != self._tensors:
            return False
        return list(map(len, groups)) == self._sizes

    def accept_numbers(self) -> None:
        """After a step of the optimizer, accept the numbers that it has set."""
        self.current = list(map(_numbers, self._groups()))

    def restore_numbers(self) -> None:
        """Restore the numbers of the groups from before the trace."""
        for old, names, group in zip(self.numbers, self._all, self._groups(), strict=False):
            for name in _numbers(group).keys() - names:
                del group[name]
            group.update(old)

    def set_numbers(self) -> None:
        """After a run, set the numbers that the optimizer's own steps set in the trace."""
        for old, new, group in zip(self.numbers, self.current, self._groups(), strict=False):
            group.update((name, new[name]) for name in new if new[name] != old.get(name))

    def check_numbers(self) -> None:
        """Refuse numbers of the groups that were not set by the optimizer itself.

        Raises:
            CaptureError: if one was.
        """
        for i, (old, group) in enumerate(zip(self.current, self._groups(), strict=False)):
            for name, value in old.items():
                if group.get(name) is not value and group.get(name) != value:
                    raise CaptureError(
                        f"captured code changes {self.name}.param_groups[{i}][{name!r}], but its Python runs only once",
                        "Change it outside the captured code (call scheduler.step() after the captured step).",
                    )

    def _groups(self) -> list[Group]:
        optimizer = self.reference()
        return [] if optimizer is None else optimizer.param_groups


def _is_other(old: object, new: object) -> bool:
    """Whether both are numbers, or tuples of as many numbers, but not the same."""
    if not (is_numeric(old) and is_numeric(new)) or type(old) is not type(new):
        return False
    return old != new


def _tensors(group: Group) -> dict[str, int]:
    """The identities of settings that are tensors of the device, whose values the program reads."""
    return {k: id(v) for k, v in group.items() if is_device_tensor(v)}


def _numbers(group: Group) -> Group:
    plain = (int, float, tuple, str, type(None))
    return {
        name: value
        for name, value in group.items()
        if name != "params" and not holds_host_number(value) and isinstance(value, plain)
    }


def _identities(optimizer: torch.optim.Optimizer) -> tuple[object, ...]:
    """The identities of parameters, state, hooks, and of `step`, which the user may have replaced."""
    attributes = vars(optimizer)
    return (
        [[*map(id, group["params"])] for group in optimizer.param_groups],
        [float if type(v) in _NUMBERS else id(v) for v in state_values(optimizer.state)],
        id(attributes.get("step")),
        id(type(optimizer).step),
        [*map(id, attributes.get("_optimizer_step_pre_hooks", {}).values())],
        [*map(id, attributes.get("_optimizer_step_post_hooks", {}).values())],
    )
