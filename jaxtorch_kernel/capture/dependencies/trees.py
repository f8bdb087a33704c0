"""Containers of tensors that captured code binds to a slot, as a recurrent network does with its state.

An example is `self.h = h, c`.

Each run binds a new container there, made of that run's tensors, of arguments, of tensors from the previous container
and of plain values. If the previous container has the structure of the new one, its tensors are inputs of the program,
found through the slot. A container with a different structure or different plain values needs another program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import torch

from ...base.torch_private import pytree
from ...programs.trees import is_device_tensor
from .guard import Check
from .slots import Slot
from .tokens import MISSING, is_plain, token

Tensor = torch.Tensor

_MAX_LEAVES = 64


def tensor_tree(value: object) -> tuple[list[object], pytree.TreeSpec] | None:
    """The leaves and the structure of a container with tensors of the device; None for anything else."""
    if isinstance(value, Tensor) or is_plain(value) or pytree.tree_is_leaf(value):
        return None
    leaves, structure = pytree.tree_flatten(value)
    on_device = any(map(is_device_tensor, leaves))
    return (leaves, structure) if on_device and len(leaves) <= _MAX_LEAVES else None


def tensors_in(value: object) -> list[Tensor]:
    """The tensors of the device in a container, or the value itself if it is one."""
    if is_device_tensor(value):
        return [value]
    tree = tensor_tree(value)
    return [] if tree is None else [leaf for leaf in tree[0] if is_device_tensor(leaf)]


class PreviousTree:
    """The container that a slot held before the code ran; its tensors are held weakly."""

    def __init__(self, leaves: list[object], structure: pytree.TreeSpec, containers: set[int]):
        self.structure, self.containers = structure, containers
        self.tensors = {i: weakref.ref(t) for i, t in enumerate(leaves) if isinstance(t, Tensor)}
        self.values = {i: token(v) for i, v in enumerate(leaves) if not isinstance(v, Tensor)}

    def index_of(self, tensor: object) -> int | None:
        """The index of a tensor among its leaves."""
        return next((i for i, t in self.tensors.items() if t() is tensor), None)

    def check(self, slot: Slot) -> Check:
        """A check that the slot holds a container with this structure and these plain values."""

        def holds() -> bool:
            tree = tensor_tree(slot.get())
            if tree is None or tree[1] != self.structure:
                return False
            leaves, _ = tree
            return all(isinstance(leaves[i], Tensor) for i in self.tensors) and all(
                token(leaves[i]) == value for i, value in self.values.items()
            )

        return Check(slot.path, "is a different container", holds)


def previous_tree(value: object) -> PreviousTree | None:
    """What to remember of a container with tensors of the device before the code runs."""
    tree = tensor_tree(value)
    return None if tree is None else PreviousTree(*tree, set(_containers(value)))


def _containers(value: object) -> Iterator[int]:
    """The ids of a container and of those inside it."""
    if pytree.tree_is_leaf(value):
        return
    yield id(value)
    children = value.values() if isinstance(value, dict) else value
    for child in children if isinstance(children, Iterable) else ():
        yield from _containers(child)


class Leaf:
    """One leaf of the container in a slot, as a target of its own (`slots.Target`)."""

    is_buffer = False

    def __init__(self, tree: NewTree, index: int):
        self.tree, self.index = tree, index
        self.path = f"{tree.slot.path} ({index})"

    def get(self) -> object:
        """The leaf of the current container."""
        tree = tensor_tree(self.tree.slot.get())
        same = tree is not None and tree[1] == self.tree.structure
        return tree[0][self.index] if tree is not None and same else MISSING

    def set(self, value: Tensor) -> None:
        """The leaf of the next container, which is bound once all its leaves are set."""
        self.tree.put(self.index, value)


class NewTree:
    """The container that the code bound to a slot: each run binds a new one, once all its leaves are there.

    Args:
        slot: holds it.
        leaves, structure: of the container that the code bound.

    Attributes:
        makers: for the leaves that are not set by the run: plain values, constants, tensors of the previous container.
    """

    def __init__(self, slot: Slot, leaves: list[object], structure: pytree.TreeSpec):
        self.slot, self.structure = slot, structure
        self.makers: dict[int, Callable[[], object]] = {}
        self._count = len(leaves)
        self._leaves: dict[int, object] = {}
        self._ran = False

    def take_from_previous(self, index: int, previous: int) -> None:
        """Take a leaf from the previous container, where it has the index `previous`."""

        def make() -> object:
            leaves, _ = pytree.tree_flatten(self.slot.get())
            # After the trace's own run the slot holds the new container already.
            return leaves[previous if self._ran else index]

        self.makers[index] = make

    def put(self, index: int, value: object) -> None:
        """Set a leaf in this run."""
        self._leaves[index] = value
        if len(self._leaves) + len(self.makers) == self._count:
            leaves, self._leaves = self._leaves, {}
            leaves |= {i: make() for i, make in self.makers.items()}
            self._ran = True
            ordered = [leaves[i] for i in range(self._count)]
            self.slot.set(pytree.tree_unflatten(ordered, self.structure))
