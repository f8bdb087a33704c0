"""The tensors that slots hold before a run, where the code moves them to other slots or returns them.

`o.previous = o.state; o.state = x * 2` moves at each run the tensor that is in `o.state` then, which is not the tensor
of the trace. So a run first takes these tensors from their slots, and lets go of them when it has stored its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial

import torch

from ...programs.trees import is_device_tensor
from ..errors import CaptureError
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

    def check(self, path: str, is_guarded: bool) -> Check | None:
        """If it was in several places, the code may have taken it from each: a check that they hold one object.

        Args:
            path: of one of the places.
            is_guarded: whether a guard expects this very object in yet another place.
        """
        if len(self.places) + is_guarded == 1:
            return None
        places = [ref(self._value), *self.places] if is_guarded else self.places
        return Check(
            path,
            "is no longer in all places where it was",
            lambda: len({id(place()) for place in places}) == 1,
        )


def release(held: Iterable[Held]) -> None:
    """Let go of several."""
    for one in held:
        one.release()


class Previous:
    """Where the tensors and containers were that the code replaced.

    Attributes:
        held: what the code moves or returns of all that was there before it ran.
    """

    def __init__(self, recorder: Recorder):
        self.held: list[Held] = []
        self._places: dict[int, list[Callable[[], object]]] = {}  # by identity
        self._parts: dict[int, str] = {}  # containers inside those, and where
        for assignment in recorder.effects.assignments.values():
            self._add_assigned(assignment)
        for leaf, gradient in recorder.gradients.values():
            if is_device_tensor(gradient):
                self._add(id(gradient), partial(_gradient, leaf))

    def _add(self, identity: int, place: Callable[[], object]) -> None:
        self._places.setdefault(identity, []).append(place)

    def _add_assigned(self, assignment: Assignment) -> None:
        """Add what was in a slot; of a container also the tensors in it."""
        slot, tree = assignment.slot, assignment.tree
        if is_device_tensor(assignment.before):
            self._add(id(assignment.before), slot.get)
        elif assignment.container:
            self._add(assignment.container, slot.get)
        if tree is not None:
            for i, reference in tree.tensors.items():
                if is_device_tensor(tensor := reference()):
                    self._add(id(tensor), partial(_leaf, slot, i))
            parts = tree.containers - {assignment.container}
            self._parts.update(dict.fromkeys(parts, slot.path))

    def has(self, value: object) -> bool:
        """Whether this was in a slot that the code assigned."""
        return id(value) in self._places

    def hold(self, value: object) -> Held:
        """An object from before the code ran, as each run finds it.

        Raises:
            CaptureError: if it is a part of a container that each run may replace.
        """
        if id(value) in self._parts:
            path = self._parts[id(value)]
            raise CaptureError(
                f"the captured code stores a container that is inside `{path}`, and assigns `{path}`",
                "Store a copy of it.",
            )
        held = Held(value, *self._places.get(id(value), [ref(value)]))
        self.held.append(held)
        return held


def _leaf(slot: Slot, index: int) -> object:
    tree = tensor_tree(slot.get())
    return None if tree is None or index >= len(tree[0]) else tree[0][index]


def _gradient(leaf: weakref.ref[Tensor]) -> Tensor | None:
    tensor = leaf()
    return None if tensor is None else tensor.grad
