"""The tensors that slots hold before a run, where the code moves them to other slots or returns them.

`o.previous = o.state; o.state = x * 2` moves at each run the tensor that is in `o.state` then, which is not the tensor
of the trace. So a run first takes these tensors from their slots, and lets go of them when it has stored its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from ...programs.trees import is_device_tensor
from .effects import Assignment
from .fetch import ref
from .guard import Check
from .recorder import Recorder
from .slots import Slot
from .trees import tensor_tree

Tensor = torch.Tensor


class Held:
    """What is somewhere before a run that may replace it there.

    Args:
        value: what was there before the trace, which has replaced it by the time of its own run.
        places: each reads it where it was; a run takes it from the first.
    """

    __slots__ = ("_value", "places")

    def __init__(self, value: object, *places: Callable[[], object]):
        self._value: object = value
        self.places = list(places)

    def fetch(self) -> object:
        """What is there now."""
        return self.places[0]()

    def hold(self) -> None:
        """Read it, at the start of a run."""
        self._value = self.fetch()

    def __call__(self) -> object:
        return self._value

    def release(self) -> None:
        """Let go of it, at the end of a run."""
        self._value = None

    def check(self, is_guarded: bool) -> Check | None:
        """If it was in several places, the code may have taken it from each: a check that they hold one object.

        Args:
            is_guarded: whether a guard expects this very object in yet another place.
        """
        if len(self.places) + is_guarded == 1:
            return None
        places = [ref(self._value), *self.places] if is_guarded else self.places
        return Check(
            "a tensor",
            "is no longer in all places where it was",
            lambda: len({id(p()) for p in places}) == 1,
        )


def release(held: Iterable[Held]) -> None:
    """Let go of several."""
    for one in held:
        one.release()


def previous_tensors(recorder: Recorder) -> dict[int, Held]:
    """The tensors that were in slots which the code assigned, and the gradients of leaves, by identity."""
    found: dict[int, Held] = {}

    def add(tensor: Tensor, place: Callable[[], object]) -> None:
        found.setdefault(id(tensor), Held(tensor)).places.append(place)

    for assignment in recorder.effects.assignments.values():
        if is_device_tensor(assignment.before):
            add(assignment.before, assignment.slot.get)
        for tensor, place in _leaves(assignment):
            add(tensor, place)
    for leaf, gradient in recorder.gradients.values():
        if is_device_tensor(gradient):
            add(gradient, partial(_gradient, leaf))
    return found


def _leaves(assignment: Assignment) -> Iterator[tuple[Tensor, Callable[[], object]]]:
    """The tensors of the container that was in a slot, each with a function that reads it there."""
    for i, reference in {} if assignment.tree is None else assignment.tree.tensors.items():
        if is_device_tensor(tensor := reference()):
            yield tensor, partial(_leaf, assignment.slot, i)


def _leaf(slot: Slot, index: int) -> object:
    tree = tensor_tree(slot.get())
    return None if tree is None or index >= len(tree[0]) else tree[0][index]


def _gradient(leaf: weakref.ref[Tensor]) -> Tensor | None:
    tensor = leaf()
    return None if tensor is None else tensor.grad
