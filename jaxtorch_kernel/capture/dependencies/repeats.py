"""The effects of a trace on Python objects that each run of its program repeats.

A run increments a counter, assigns a plain value, sets a `requires_grad`, fills a container or extends a list. Each
effect is a callable without arguments, created at the end of the trace.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .effects import Assignment, set_contents
from .fetch import Fetch
from .guard import Check
from .slots import Slot
from .snapshots import Container
from .tokens import is_plain, is_plain_container

Tensor = torch.Tensor


class Assign:
    """Assigns a plain value to a slot, as the trace did."""

    __slots__ = ("slot", "value")

    def __init__(self, slot: Slot, value: object):
        self.slot, self.value = slot, value

    def __call__(self) -> None:
        if self.slot.get() is not self.value:
            self.slot.set(self.value)


class Increment:
    """Adds `step` to a counter, as often as the trace did: for a float, repeated addition is not multiplication."""

    __slots__ = ("slot", "step", "times")

    def __init__(self, slot: Slot, step: int | float, times: int):
        self.slot, self.step, self.times = slot, step, times

    def __call__(self) -> None:
        value: Any = self.slot.get()  # a number: its guard holds
        for _ in range(self.times):
            value += self.step
        self.slot.set(value)


class Rebind:
    """Binds objects that existed before the trace to the slots to which the code bound them, all at once."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[Slot, Fetch]] = []

    def __call__(self) -> None:
        # One slot may hold the only reference to what another one gets.
        values = [(slot, value()) for slot, value in self.pairs]
        for slot, value in values:
            if value is not None and slot.get() is not value:
                slot.set(value)


class AssignContainer:
    """Binds a new container of plain values to a slot, as the trace did."""

    __slots__ = ("contents", "slot")

    def __init__(self, slot: Slot, container: object):
        self.slot, self.contents = slot, copy.deepcopy(container)

    def __call__(self) -> None:
        self.slot.set(copy.deepcopy(self.contents))


def repeat_of(assignment: Assignment, is_read: bool) -> Callable[[], None] | None:
    """The operation on a slot that each run must repeat; None if it cannot be repeated.

    A program runs only if its guards hold, so a value that the code assigned from what it read is the same at each run.
    """
    now: Any = assignment.slot.get()
    before: Any = assignment.before
    slot = assignment.slot
    if assignment.increments and not assignment.stored and not is_read:
        if isinstance(now - before, int):
            return Increment(slot, now - before, 1)
        # Steps that cancel out leave at most a rounding error: such a slot is guarded instead.
        times = (now - before) / assignment.step if assignment.step else 0
        return Increment(slot, assignment.step, round(times)) if times > 0.5 else None
    if is_plain(now):
        return Assign(slot, now)
    return AssignContainer(slot, now) if is_plain_container(now) else None


class SetRequiresGrad:
    """Sets a tensor's `requires_grad`."""

    __slots__ = ("tensor", "value")

    def __init__(self, tensor: Tensor, value: bool):
        self.tensor, self.value = weakref.ref(tensor), value

    def __call__(self) -> None:
        tensor = self.tensor()
        if tensor is not None:
            tensor.requires_grad_(self.value)

    def check(self) -> Check:
        """A check that `requires_grad` has its previous value before a run."""

        def holds() -> bool:
            tensor = self.tensor()
            return tensor is not None and tensor.requires_grad is not self.value

        return Check("a tensor's requires_grad", "has changed", holds)


class SetContents:
    """Gives a container the contents that it had after the trace."""

    __slots__ = ("contents", "fetch")

    def __init__(self, fetch: Fetch, container: Container):
        self.fetch, self.contents = fetch, container.copy()

    def __call__(self) -> None:
        container: Any = self.fetch()  # of the same type: its guard holds
        set_contents(container, self.contents)


class Extend:
    """Appends plain values to a list, as the code did."""

    __slots__ = ("fetch", "values")

    def __init__(self, fetch: Fetch, values: Sequence[object]):
        self.fetch, self.values = fetch, values

    def __call__(self) -> None:
        target: Any = self.fetch()
        target.extend(self.values)


def appended(container: list[object] | deque[object], contents: Container) -> list[object]:
    """What was appended to a list. A deque that was full has lost as many elements at its other end."""
    now, before, limit = list(container), list(contents), getattr(container, "maxlen", None)
    if limit is None or len(now) < limit:
        return now[len(before) :]
    for count in range(1, limit):
        if all(a is b for a, b in zip(before[len(before) + count - limit :], now, strict=False)):
            return now[limit - count :]
    return now
