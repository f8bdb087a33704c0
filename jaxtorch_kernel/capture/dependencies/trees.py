"""Containers of tensors that captured code binds to a place, as a recurrent network keeps its state (`self.h = h, c`).

Each run binds a new container there, made of that run's tensors, of arguments, of tensors from the old container and of
plain values. If the old container has the structure of the new one, its tensors are inputs of the program, found
through the slot. A container with a different structure or different plain values needs another program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...base.torch_private import pytree
from .guard import Check
from .slots import Slot
from .tokens import MISSING, is_plain, token

Tensor = torch.Tensor

_MOST = 64  # tensors and values in one


def parts_of(value: Any) -> tuple[list[Any], Any] | None:
    """The leaves and the structure of a container with tensors of the device; None of anything else."""
    if isinstance(value, Tensor) or is_plain(value) or pytree.tree_is_leaf(value):
        return None
    leaves, structure = pytree.tree_flatten(value)
    on_device = any(isinstance(leaf, Tensor) and leaf.device.type == "jax" for leaf in leaves)
    return (leaves, structure) if on_device and len(leaves) <= _MOST else None


class Old:
    """The container that stood at a place before the code ran; its tensors are held weakly."""

    def __init__(self, leaves: list[Any], structure: Any, containers: set[int]):
        self.structure, self.containers = structure, containers
        self.tensors = {i: weakref.ref(t) for i, t in enumerate(leaves) if isinstance(t, Tensor)}
        self.values = {i: token(v) for i, v in enumerate(leaves) if not isinstance(v, Tensor)}

    def place_of(self, tensor: Any) -> int | None:
        """Where a tensor stood in it."""
        return next((i for i, t in self.tensors.items() if t() is tensor), None)

    def check(self, slot: Slot) -> Check:
        """A check that the place holds a container with this structure and these plain values."""

        def holds() -> bool:
            now = parts_of(slot.get())
            return (
                now is not None
                and now[1] == self.structure
                and all(isinstance(now[0][i], Tensor) for i in self.tensors)
                and all(token(now[0][i]) == value for i, value in self.values.items())
            )

        return Check(slot.path, "is a different container", holds)


def old_of(value: Any) -> Old | None:
    """What is known of a container with tensors of the device before the code runs."""
    parts = parts_of(value)
    return None if parts is None else Old(*parts, set(_containers(value)))


def _containers(value: Any) -> Any:
    if pytree.tree_is_leaf(value):
        return
    yield id(value)
    for child in value.values() if isinstance(value, dict) else value:
        yield from _containers(child)


class Part:
    """One leaf of the container at a place, as a place of its own."""

    is_buffer = False

    def __init__(self, tree: Tree, position: int):
        self.tree, self.position = tree, position
        self.path = f"{tree.slot.path} ({position})"

    def get(self) -> Any:
        """The current container."""
        now = parts_of(self.tree.slot.get())
        same = now is not None and now[1] == self.tree.structure
        return now[0][self.position] if now is not None and same else MISSING

    def set(self, value: Any) -> None:
        """What stands there next, once all the others are set too."""
        self.tree.put(self.position, value)


class Tree:
    """The container that the code bound to a place: each run binds a new one, when all its parts are there.

    Args:
        slot: the place.
        leaves, structure: what the code bound.

    Attributes:
        given: makes the leaves that no run gives: plain values, constants, tensors of the old container.
    """

    def __init__(self, slot: Slot, leaves: list[Any], structure: Any):
        self.slot, self.structure = slot, structure
        self.given: dict[int, Callable[[], Any]] = {}
        self._count = len(leaves)
        self._parts: dict[int, Any] = {}
        self._ran = False

    def keep(self, position: int, old: int) -> None:
        """A leaf is the tensor that stood at the place `old` of the old container."""

        def make() -> Any:
            leaves, _ = pytree.tree_flatten(self.slot.get())
            # After the trace's own run the new container stands there already.
            return leaves[old if self._ran else position]

        self.given[position] = make

    def put(self, position: int, value: Any) -> None:
        """A part of this run."""
        self._parts[position] = value
        if len(self._parts) + len(self.given) == self._count:
            parts, self._parts = self._parts, {}
            parts |= {i: make() for i, make in self.given.items()}
            self._ran = True
            self.slot.set(
                pytree.tree_unflatten([parts[i] for i in range(self._count)], self.structure)
            )
