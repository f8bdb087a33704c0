"""What each run of a program does again of what the trace did to Python objects.

A counter is increased, a plain value is assigned, a `requires_grad` is set, a container is filled, a list gets longer.
Each is a callable without arguments, made when the trace is over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from .effects import Written, put_contents
from .guard import Check
from .slots import Slot
from .tokens import is_plain

Tensor = torch.Tensor


class Again:
    """What a run does to one slot, as the trace did: `value` is added (`counted`) or assigned."""

    __slots__ = ("counted", "slot", "value")

    def __init__(self, slot: Slot, value: Any, counted: bool):
        self.slot, self.value, self.counted = slot, value, counted

    def __call__(self) -> None:
        if self.counted:
            self.slot.set(self.slot.get() + self.value)
        elif self.slot.get() is not self.value:
            self.slot.set(self.value)


def again_of(written: Written, is_read: bool) -> Again | None:
    """What each run must do to a slot that the trace changed; None where a guard sees the change.

    A program runs only where its guards hold: what the code assigned from what it read is the same at each run.
    """
    now = written.slot.get()
    if written.counts and not written.stored and not is_read:
        return Again(written.slot, now - written.before, True)
    return Again(written.slot, now, False) if is_plain(now) else None


class Reflag:
    """What a run does to a tensor's `requires_grad`."""

    __slots__ = ("tensor", "value")

    def __init__(self, tensor: Tensor, value: bool):
        self.tensor, self.value = weakref.ref(tensor), value

    def __call__(self) -> None:
        tensor = self.tensor()
        if tensor is not None:
            tensor.requires_grad_(self.value)

    def check(self) -> Check:
        """That it was the other one before a run."""

        def holds() -> bool:
            tensor = self.tensor()
            return tensor is not None and tensor.requires_grad is not self.value

        return Check("a tensor's requires_grad", "has changed", holds)


class Refill:
    """What a run does to a container: it holds what it held after the trace."""

    __slots__ = ("after", "fetch")

    def __init__(self, fetch: Callable[[], Any], container: Any):
        self.fetch, self.after = fetch, container.copy()

    def __call__(self) -> None:
        put_contents(self.fetch(), self.after)


class Extend:
    """What a run does to a list to which the code appends plain values."""

    __slots__ = ("fetch", "values")

    def __init__(self, fetch: Callable[[], Any], values: list[Any]):
        self.fetch, self.values = fetch, values

    def __call__(self) -> None:
        self.fetch().extend(self.values)
