"""The effects of a trace on Python objects that each run of its program repeats.

A run increments a counter, assigns a plain value, sets a `requires_grad`, fills a container or extends a list. Each
effect is a callable without arguments, created at the end of the trace.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .effects import Written, put_contents
from .guard import Check
from .slots import Slot
from .tokens import is_plain, is_plain_container

Tensor = torch.Tensor


class Again:
    """Assigns `value` to a slot, as the trace did."""

    __slots__ = ("slot", "value")

    def __init__(self, slot: Slot, value: Any):
        self.slot, self.value = slot, value

    def __call__(self) -> None:
        if self.slot.get() is not self.value:
            self.slot.set(self.value)


class Count:
    """Adds `step` to a counter, as often as the trace did: for a float, repeated addition is not multiplication."""

    __slots__ = ("slot", "step", "times")

    def __init__(self, slot: Slot, step: Any, times: int):
        self.slot, self.step, self.times = slot, step, times

    def __call__(self) -> None:
        value = self.slot.get()
        for _ in range(self.times):
            value += self.step
        self.slot.set(value)


class Rebind:
    """Binds the existing objects that the code bound to slots, all at once."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[Slot, Callable[[], Any]]] = []

    def __call__(self) -> None:
        # One slot may hold the only reference to what another one gets.
        values = [(slot, value()) for slot, value in self.pairs]
        for slot, value in values:
            if value is not None and slot.get() is not value:
                slot.set(value)


class AgainContainer:
    """Binds a new container to a slot to which the code bound a container that it created."""

    __slots__ = ("contents", "slot")

    def __init__(self, slot: Slot, container: Any):
        self.slot, self.contents = slot, copy.deepcopy(container)

    def __call__(self) -> None:
        self.slot.set(copy.deepcopy(self.contents))


def again_of(written: Written, is_read: bool) -> Callable[[], None] | None:
    """The operation on a slot that each run must repeat; None if it cannot be repeated.

    A program runs only if its guards hold, so a value that the code assigned from what it read is the same at each run.
    """
    now, slot = written.slot.get(), written.slot
    if written.counts and not written.stored and not is_read:
        if isinstance(now - written.before, int):
            return Count(slot, now - written.before, 1)
        # Steps that cancel each other leave a rounding error at most: the place is guarded.
        times = (now - written.before) / written.step if written.step else 0
        return Count(slot, written.step, round(times)) if times > 0.5 else None
    if is_plain(now):
        return Again(slot, now)
    return AgainContainer(slot, now) if is_plain_container(now) else None


class Reflag:
    """Sets a tensor's `requires_grad`."""

    __slots__ = ("tensor", "value")

    def __init__(self, tensor: Tensor, value: bool):
        self.tensor, self.value = weakref.ref(tensor), value

    def __call__(self) -> None:
        tensor = self.tensor()
        if tensor is not None:
            tensor.requires_grad_(self.value)

    def check(self) -> Check:
        """A check that the flag has its old value before a run."""

        def holds() -> bool:
            tensor = self.tensor()
            return tensor is not None and tensor.requires_grad is not self.value

        return Check("a tensor's requires_grad", "has changed", holds)


class Refill:
    """Gives a container the contents that it had after the trace."""

    __slots__ = ("after", "fetch")

    def __init__(self, fetch: Callable[[], Any], container: Any):
        self.fetch, self.after = fetch, container.copy()

    def __call__(self) -> None:
        put_contents(self.fetch(), self.after)


class Extend:
    """Appends plain values to a list, as the code did."""

    __slots__ = ("fetch", "values")

    def __init__(self, fetch: Callable[[], Any], values: list[Any]):
        self.fetch, self.values = fetch, values

    def __call__(self) -> None:
        self.fetch().extend(self.values)
