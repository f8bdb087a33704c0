"""Python state that captured code changes: counters, attributes that it sets, containers that it fills.

The code runs once, when it is traced; its program runs many times. Each run repeats what the trace did to Python
objects: it increments a counter, assigns a plain value, gives a container its new contents, appends to a list that the
code only appends to, and binds the tensor of that run where the code bound one. A program runs only if its guards hold,
so that the values that the code read, and hence those that it assigns, are the same at each run. Effects that cannot be
repeated are refused: a list that the code both reads and fills.

This module records what the code changed and restores Python state. `slots.py` has the targets of assignments,
`repeats.py` the operations of each run.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import torch

from ...base import torch_private as private
from ...operators.storages import sized
from ...storage import moves
from .fetch import Fetch, fetched, item_of, strong
from .reads import ATTRIBUTE, ITEM
from .slots import Slot
from .snapshots import Container, Snapshots
from .tokens import CONTAINERS, MISSING, is_plain, items_of
from .trees import previous_tree, tensors_in

Tensor = torch.Tensor

# A line of user code: file and line, if known.
Line: TypeAlias = tuple[str | None, int | None]
Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int | torch.SymInt, torch.dtype]


class Assignment:
    """A slot that the code assigns or increments, and its previous value.

    Attributes:
        before: the previous value; MISSING if there was none.
        tree, container: what is known of it if it was a container of tensors; its identity if it was any container.
        stored: whether the code assigns it, rather than only incrementing it.
        line, file: of the assignment.
        increments: how many statements increment it, and `step`: by how much they do so together.
        replaced: whether `before` was a container and has been dropped, because another value replaced it.
        was_inferred: found without its name in the code, so that what the code read there may have no guard.
        is_preexisting: whether the current value is older than the code's run.
    """

    def __init__(self, slot: Slot, before: object):
        self.slot = slot
        self.before = before
        self.tree = previous_tree(before)
        is_container = isinstance(before, CONTAINERS) and not is_plain(before)
        self.container = id(before) if is_container else 0
        self.stored = False
        self.line: int | None = None
        self.file: str | None = None
        self.increments = 0
        self.step: int | float = 0
        self.replaced = False
        self.was_inferred = False
        self.is_preexisting = False

    @property
    def needs_previous(self) -> bool:
        """Whether the new value may depend on the previous one, which may have no guard."""
        return self.was_inferred or (self.increments > 0 and self.stored)


class ReachedContainer(NamedTuple):
    """A mutable container that the code can reach.

    Attributes:
        path: as in source code.
        container: the container itself.
        before: a copy of its previous contents.
        fetch: finds the container that is at the path now.
        line: where user code first read it.
    """

    path: str
    container: Container
    before: Container
    fetch: Fetch
    line: Line


class ReachedTensor:
    """A tensor that existed before the code ran, and the properties besides its values that the code may change.

    Attributes:
        path: as in source code; empty for an argument.
        requires_grad: its previous value, for a leaf; None otherwise.
    """

    __slots__ = ("_layout", "_reference", "_storage", "path", "requires_grad")

    def __init__(self, path: str, tensor: Tensor):
        self.path = path
        self._reference = weakref.ref(tensor)
        self.requires_grad = tensor.requires_grad if tensor.is_leaf else None
        self._storage = tensor.untyped_storage() if tensor.device.type == "jax" else None
        self._layout = layout_of(tensor)

    @property
    def name(self) -> str:
        """For a message."""
        return f"`{self.path}`" if self.path else "an argument"

    def tensor(self) -> Tensor | None:
        """The tensor, while it lives."""
        return self._reference()

    def changed_flag(self) -> bool | None:
        """The current `requires_grad`, if the code changed it."""
        tensor = self._reference()
        if tensor is None or self.requires_grad in (None, tensor.requires_grad):
            return None
        return not self.requires_grad

    def if_moved(self) -> Tensor | None:
        """The tensor, if its storage or its layout has changed (`.data =`, `resize_`, `t_`)."""
        tensor = self._reference()
        if tensor is None or self._storage is None:
            return None
        same = tensor.untyped_storage().buffer is self._storage.buffer  # type: ignore[attr-defined]  # of the device
        return None if same and layout_of(tensor) == self._layout else tensor

    def has_layout_of(self, tensor: Tensor) -> bool:
        """Whether the other tensor has the layout that this one had."""
        return layout_of(tensor) == self._layout

    def restore_memory(self) -> None:
        """Restore the tensor's memory."""
        tensor = self.if_moved()
        if tensor is not None and self._storage is not None:
            size, stride, offset, _ = self._layout
            storage = sized(self._storage)
            with torch.no_grad():  # it may be a leaf
                private.put_on_storage(tensor, storage, int(offset), size, stride)
            moves.note()

    def restore(self) -> None:
        """Restore the tensor's memory and `requires_grad`."""
        self.restore_memory()
        tensor, flag = self._reference(), self.requires_grad
        if tensor is None or flag is None or self.changed_flag() is None:
            return
        if tensor.is_leaf:
            tensor.requires_grad_(flag)


def layout_of(tensor: Tensor) -> Layout:
    """The layout of a tensor: size, stride, offset, dtype."""
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


class Effects:
    """The effects of one trace on Python state."""

    def __init__(self) -> None:
        self.assignments: dict[tuple[int, str, object], Assignment] = {}
        self.containers: list[ReachedContainer] = []
        self.tensors: dict[int, ReachedTensor] = {}
        # By the identity of a `__dict__`, or of a module's table of submodules: the object that has it, by identity.
        self.owners: dict[int, int] = {}
        self.snapshots = Snapshots()
        self._known: dict[int, Container] = {}  # their previous contents, by identity

    def compare_snapshots(self, mentions: Callable[[str], bool]) -> None:
        """After the code has run, find the writes whose target the bytecode does not name.

        Other threads may write to the same objects meanwhile, so that a write counts only if the code mentions the
        name of its target.

        Args:
            mentions: whether the code has a name in it.
        """
        for slot, before in self.snapshots.changed_slots():
            name = slot.path if slot.key == "cell_contents" else slot.key
            if slot.identity not in self.assignments and mentions(name):
                self.assignments[slot.identity] = assignment = Assignment(slot, before)
                assignment.stored = assignment.was_inferred = True
        for path, container, contents in self.snapshots.containers():
            if id(container) in self._known or same_contents(container, contents):
                continue
            if mentions(path.rpartition(".")[2]):
                self._known[id(container)] = contents
                fetch = strong(container)
                self.containers.append(
                    ReachedContainer(path, container, contents, fetch, (None, None))
                )
        self.snapshots = Snapshots()

    def before(self, container: Container) -> Container:
        """A copy of the contents of a mutable container before the code ran, as far as they are known."""
        known = self._known.get(id(container))
        if known is None:
            known = self.snapshots.before(container)
        if known is not None:
            return known
        before = _copy(container)
        for (owner, kind, key), assignment in self.assignments.items():
            if owner == id(container) and kind == ITEM:
                _put_back(before, key, assignment.before)
        return before

    def store(self, slot: Slot, line: int | None, file: str) -> None:
        """Note that the code may be about to assign to the slot."""
        assignment = self._of(slot)
        assignment.stored = True
        assignment.line, assignment.file = line, file

    def store_unnamed(self, slot: Slot) -> None:
        """Note that the code assigns to the slot, which it may not name (`for m in layers: m.n = 1`, `setattr`)."""
        is_new = slot.identity not in self.assignments
        assignment = self._of(slot)
        assignment.stored = True
        assignment.was_inferred |= is_new

    def is_counter(self, slot: Slot) -> bool:
        """Whether code that names the slot increments it."""
        known = self.assignments.get(slot.identity)
        return known is not None and known.increments > 0

    def increment(self, slot: Slot, by: int | float) -> None:
        """Note that the code is about to increment the slot."""
        assignment = self._of(slot)
        assignment.increments += 1
        assignment.step += by

    def _of(self, slot: Slot) -> Assignment:
        known = self.assignments.get(slot.identity)
        if known is None:
            known = self.assignments[slot.identity] = Assignment(slot, slot.get())
        return known

    def add_container(self, path: str, container: object, fetch: Fetch, line: Line) -> None:
        """Note a container that the code can reach, if it is mutable."""
        if isinstance(container, list | dict | set | deque) and id(container) not in self._known:
            before = self.before(container)
            # The list below holds the container, so that no other object gets its id.
            self._known[id(container)] = before
            self.containers.append(ReachedContainer(path, container, before, fetch, line))

    def previous(self, owner: object, kind: str, key: object, value: object) -> object:
        """What was in a slot, or under a key of a container, before the code ran; `value` is there now.

        Returns MISSING if nothing was there.
        """
        assignment = self.assignments.get((id(owner), kind, key))
        if assignment is None and kind == ITEM and id(owner) in self.owners:
            assignment = self.assignments.get((self.owners[id(owner)], ATTRIBUTE, key))
        if assignment is not None:
            return assignment.before
        before = self._known.get(id(owner)) if kind == ITEM else None
        if before is None or isinstance(before, set):
            return value
        try:
            return item_of(before, key)
        except LookupError:
            return MISSING

    def add_tensor(self, path: str, tensor: Tensor) -> None:
        """Note a tensor that the code can reach."""
        if id(tensor) not in self.tensors:
            self.tensors[id(tensor)] = ReachedTensor(path, tensor)

    def drop_replaced(self, is_preexisting: Callable[[object], bool]) -> None:
        """Drop containers that the code replaced: they may hold tensors of the trace.

        Args:
            is_preexisting: whether an object is older than the code's run, which is unknown afterwards.
        """
        self._known.clear()
        self.containers = [c for c in self.containers if fetched(c.fetch) is c.container]
        for assignment in self.assignments.values():
            current = assignment.slot.get()
            assignment.is_preexisting = is_preexisting(current)
            was_container = isinstance(assignment.before, list | dict | set | deque)
            if was_container and current is not assignment.before:
                assignment.before, assignment.replaced = MISSING, True

    def is_assigned_by_item(self, container: Container, before: Container) -> bool:
        """Whether the code changed a container only by assigning to known slots: its items, or attributes of the object
        whose `__dict__` it is.
        """
        keys: list[list[object]]  # of each changed element
        if isinstance(container, dict) and isinstance(before, dict):
            if [k for k in before if k in container] != [k for k in container if k in before]:
                return False  # another order
            union = {**before, **container}
            changed = [k for k in union if before.get(k, MISSING) is not container.get(k, MISSING)]
            keys = [[k] for k in changed]
        elif (
            isinstance(container, list | deque)
            and isinstance(before, list | deque)
            and len(container) == len(before)
        ):
            count = len(container)
            keys = [[i, i - count] for i in range(count) if container[i] is not before[i]]
        else:
            return False
        owner = id(container)
        owners = [(owner, ITEM)]
        if owner in self.owners:
            owners.append((self.owners[owner], ATTRIBUTE))
        known = self.assignments
        return all(any((*of, k) in known for of in owners for k in group) for group in keys)

    def changed_containers(self) -> list[ReachedContainer]:
        """The containers whose contents changed and that are still at their paths."""
        return [
            c
            for c in self.containers
            if not same_contents(c.container, c.before) and fetched(c.fetch) is c.container
        ]

    def stored_tensors(self) -> Iterator[Tensor]:
        """The tensors that the code assigned, put into containers, or gave another tensor as its data."""
        for assignment in self.assignments.values():
            yield from tensors_in(assignment.slot.get())
        for c in self.changed_containers():
            for value in values_of(c.container):
                yield from tensors_in(value)
        for reached in self.tensors.values():
            if (tensor := reached.if_moved()) is not None:
                yield tensor

    def restore(self) -> None:
        """Restore everything."""
        for c in self.containers:
            if not same_contents(c.container, c.before):
                set_contents(c.container, c.before)
        for assignment in self.assignments.values():
            slot = assignment.slot
            if not assignment.replaced and slot.get() is not assignment.before:
                slot.set(assignment.before)
        for tensor in self.tensors.values():
            tensor.restore()


def same_contents(now: Container, before: Container) -> bool:
    """Whether a container has the same contents in the same order."""
    if len(now) != len(before):
        return False
    if isinstance(now, set):
        return bool(now == before)
    if isinstance(now, dict) and isinstance(before, dict) and _keys(now) != _keys(before):
        return False
    return all(a is b for a, b in zip(values_of(now), values_of(before), strict=True))


def _keys(container: dict[object, object]) -> list[object]:
    return [key for key, _ in items_of(container)]


def _copy(container: Container) -> Container:
    """A copy of the contents, which no method of a subclass makes."""
    if isinstance(container, dict):
        return dict(items_of(container))
    return list.copy(container) if isinstance(container, list) else container.copy()


def _put_back(container: Container, key: object, value: object) -> None:
    """Give a copy of a container the previous value of an item."""
    if isinstance(container, dict):
        if value is MISSING:
            container.pop(key, None)
        else:
            container[key] = value
    elif (
        isinstance(container, list | deque)
        and isinstance(key, int)
        and value is not MISSING
        and -len(container) <= key < len(container)
    ):
        container[key] = value


def values_of(container: Container) -> Iterable[object]:
    """The values of a dictionary, the elements of another container."""
    return [v for _, v in items_of(container)] if isinstance(container, dict) else container


def changed_values(now: Container, before: Container) -> list[object]:
    """The values under keys, or at positions, that had others before."""
    if isinstance(now, set) or isinstance(before, set):
        return []
    old = dict(items_of(before) if isinstance(before, dict) else enumerate(before))
    new = items_of(now) if isinstance(now, dict) else enumerate(now)
    return [value for key, value in new if old.get(key, MISSING) is not value]


def set_contents(container: Container, contents: Container) -> None:
    """Give a container the contents of another one of its type."""
    if isinstance(container, list):
        container[:] = contents
        return
    container.clear()
    if isinstance(container, dict):
        if isinstance(contents, dict):
            container.update(contents)
    elif isinstance(container, set):
        container.update(contents)
    else:
        container.extend(contents)
