"""Python state that captured code changes: counters, attributes that it sets, containers that it fills.

The code runs once, when it is traced; its program runs many times. Each run repeats what the trace did to Python
objects: it increments a counter, assigns a plain value, gives a container its new contents, appends to a list that the
code only appends to, and binds the tensor of that run where the code bound one. A program runs only if its guards hold,
so that the values that the code read, and hence those that it assigns, are the same at each run. Effects that cannot be
repeated are refused: a list that the code both reads and fills.

This module records what the code changed and restores Python state. `slots.py` has the places, `repeats.py` the
operations of each run.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...base import torch_private as private
from ...storage import moves
from .fetch import strong
from .slots import Slot
from .snapshots import Snapshots
from .tokens import MISSING
from .trees import old_of

Tensor = torch.Tensor


class Written:
    """A slot that the code writes, and its previous value."""

    def __init__(self, slot: Slot, before: Any):
        self.slot = slot
        self.before = before
        self.old = old_of(self.before)
        self.stored = False
        self.line: int | None = None
        self.file: str | None = None
        self.counts = 0  # statements that count it up
        self.step: Any = 0  # by how much all of them together
        self.replaced = False  # it was a container, which is not held any more
        self.was_found = False  # by comparing: what the code read there may have no guard
        self.was_there = False  # whether what stands there now is older than the code's run


class Contained(NamedTuple):
    """A container that the code can reach.

    Attributes:
        path: as in source code.
        now: itself.
        before: a copy of what it was.
        fetch: returns the current object in its place.
        line: file and line in user code where it was first read.
    """

    path: str
    now: Any
    before: Any
    fetch: Callable[[], Any]
    line: tuple[str | None, int | None]


class Watched:
    """A tensor that existed before the code ran, and the properties besides its values that the code may change.

    Attributes:
        path: as in source code; empty for an argument.
        requires_grad: what it was, for a leaf; None otherwise.
    """

    __slots__ = ("_geometry", "_reference", "_storage", "path", "requires_grad")

    def __init__(self, path: str, tensor: Tensor):
        self.path = path
        self._reference = weakref.ref(tensor)
        self.requires_grad = tensor.requires_grad if tensor.is_leaf else None
        self._storage = tensor.untyped_storage() if tensor.device.type == "jax" else None
        self._geometry = layout_of(tensor)

    @property
    def name(self) -> str:
        """For a message."""
        return f"`{self.path}`" if self.path else "an argument"

    def tensor(self) -> Tensor | None:
        """The tensor, while it lives."""
        return self._reference()

    def flag(self) -> bool | None:
        """Its current `requires_grad`, if the code changed it."""
        tensor = self._reference()
        if tensor is None or self.requires_grad in (None, tensor.requires_grad):
            return None
        return not self.requires_grad

    def moved(self) -> Tensor | None:
        """The tensor, if its storage or its layout has changed (`.data =`, `resize_`, `t_`)."""
        tensor = self._reference()
        if tensor is None or self._storage is None:
            return None
        same = tensor.untyped_storage().buffer is self._storage.buffer  # type: ignore[attr-defined]  # ours
        return None if same and layout_of(tensor) == self._geometry else tensor

    def in_place(self, tensor: Tensor) -> bool:
        """Whether the tensor has the geometry that this one had."""
        return layout_of(tensor) == self._geometry

    def put_back(self) -> None:
        """Restore the tensor's memory."""
        tensor = self.moved()
        if tensor is not None and self._storage is not None:
            size, stride, offset, _ = self._geometry
            with torch.no_grad():  # it may be a leaf
                private.put_on_storage(tensor, self._storage, offset, size, stride)
            moves.note()

    def restore(self) -> None:
        """Restore the tensor's memory and flags."""
        self.put_back()
        tensor = self._reference()
        if tensor is not None and self.flag() is not None and tensor.is_leaf:
            tensor.requires_grad_(self.requires_grad)  # type: ignore[arg-type]  # not None


def layout_of(tensor: Tensor) -> tuple[Any, ...]:
    """The layout of a tensor: size, stride, offset, dtype."""
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


class Effects:
    """The effects of one trace on Python state."""

    def __init__(self) -> None:
        self.written: dict[Any, Written] = {}
        self.containers: list[Contained] = []
        self._known: set[int] = set()
        self.tensors: dict[int, Watched] = {}
        self.snapshots = Snapshots()
        self._changed: dict[int, Any] = {}  # what containers held, by their identity

    def compare(self, mentions: Callable[[str], bool]) -> None:
        """After the code has run, find the writes that its text does not show.

        `mentions`: whether it has a name in it. Other threads may write to the same objects meanwhile.
        """
        for slot, before in self.snapshots.written():
            name = slot.path if slot.key == "cell_contents" else slot.key
            if slot.place not in self.written and mentions(name):
                self.written[slot.place] = written = Written(slot, before)
                written.stored = written.was_found = True
        for path, container, before in self.snapshots.filled():
            changed = id(container) not in self._known and not same_contents(container, before)
            if changed and mentions(path.rpartition(".")[2]):
                self._known.add(id(container))
                here = strong(container)
                self.containers.append(Contained(path, container, before, here, (None, None)))
        self.snapshots = Snapshots()
        for c in self.containers:
            if not same_contents(c.now, c.before):
                self._changed[id(c.now)] = c.before

    def before(self, container: Any) -> Any:
        """The contents of a container before the code ran, if known; the container itself if they are unchanged."""
        return self._changed.get(id(container), container)

    def store(self, slot: Slot, line: int | None, file: str) -> None:
        """Note that the code may be about to assign to the slot."""
        written = self._of(slot)
        written.stored = True
        written.line, written.file = line, file

    def count(self, slot: Slot, by: Any) -> None:
        """Note that the code is about to increment the slot."""
        written = self._of(slot)
        written.counts += 1
        written.step += by

    def _of(self, slot: Slot) -> Written:
        known = self.written.get(slot.place)
        if known is None:
            known = self.written[slot.place] = Written(slot, slot.get())
        return known

    def contain(
        self,
        path: str,
        container: Any,
        fetch: Callable[[], Any],
        line: tuple[str | None, int | None],
    ) -> None:
        """Record a container that the code can reach; `fetch` returns the current one, `line` is in user code."""
        if isinstance(container, list | dict | set | deque) and id(container) not in self._known:
            self._known.add(id(container))  # which stays its own: the container is held
            before = self.snapshots.before(container)
            before = container.copy() if before is None else before
            self.containers.append(Contained(path, container, before, fetch, line))

    def watch(self, path: str, tensor: Tensor) -> None:
        """A tensor that the code can reach."""
        if id(tensor) not in self.tensors:
            self.tensors[id(tensor)] = Watched(path, tensor)

    def forget_replaced(self, was_there: Callable[[Any], bool]) -> None:
        """Drop containers that the code replaced: they may hold tensors of the trace.

        `was_there`: whether an object is older than the code's run, which is known no longer afterwards.
        """
        self._changed.clear()
        self.containers = [c for c in self.containers if _stands(c.fetch, c.now)]
        for written in self.written.values():
            written.was_there = was_there(written.slot.get())
            replaced = isinstance(written.before, list | dict | set | deque)
            if replaced and written.slot.get() is not written.before:
                written.before, written.replaced = MISSING, True

    def filled(self) -> list[Contained]:
        """The containers whose contents changed and that are still in place."""
        return [
            c
            for c in self.containers
            if not same_contents(c.now, c.before) and _stands(c.fetch, c.now)
        ]

    def restore(self) -> None:
        """Restore everything."""
        for c in self.containers:
            if not same_contents(c.now, c.before):
                put_contents(c.now, c.before)
        for written in self.written.values():
            if not written.replaced and written.slot.get() is not written.before:
                written.slot.set(written.before)
        for watched in self.tensors.values():
            watched.restore()


def _stands(fetch: Callable[[], Any], container: Any) -> bool:
    try:
        return fetch() is container
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return False


def same_contents(now: Any, before: Any) -> bool:
    """Whether a container has the same contents in the same order."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        if list(now) != list(before):
            return False
        now, before = now.values(), before.values()
    elif isinstance(now, set):
        return bool(now == before)
    return all(a is b for a, b in zip(now, before, strict=True))


def put_contents(container: Any, contents: Any) -> None:
    """Give a container the contents of another one."""
    if isinstance(container, list):
        container[:] = contents
        return
    container.clear()
    (container.extend if isinstance(container, deque) else container.update)(contents)
