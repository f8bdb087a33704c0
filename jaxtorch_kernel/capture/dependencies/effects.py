"""Python state that captured code changes: counters, attributes that it sets, containers that it fills.

The code runs once, when it is traced; its program runs many times. Each run repeats what the trace did to Python
objects: a counter is increased, a plain value is assigned, a container gets its new contents, a list to which the code
only appends gets longer, and a place to which the code bound a tensor gets the tensor of that run. A program runs only
where its guards hold, so that what the code read before is the same at each run, and so is what it assigns. What cannot
be repeated is refused: a list that the code both reads and fills.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ... import _torch_private as private
from .guard import Check
from .tokens import MISSING, is_plain

Tensor = torch.Tensor


_REPLACED = object()  # what stood in a place was a container, which is not held any more


class Slot:
    """A place that code writes: an attribute, an item, a variable of a closure.

    Attributes:
        owner: whose it is.
        key: an attribute's name, an item's key.
        path: as one would write it.
        is_buffer: a module's buffer, or another tensor among its attributes.
    """

    __slots__ = ("_owner", "is_buffer", "key", "kind", "path")

    def __init__(
        self,
        owner: Any,
        kind: str,
        key: Any,
        path: str,
        is_buffer: bool = False,
        fetch: Callable[[], Any] | None = None,
    ):
        self.kind, self.key, self.path, self.is_buffer = kind, key, path, is_buffer
        try:
            self._owner: Callable[[], Any] = weakref.ref(owner)
        except TypeError:  # another dictionary may stand there at a run
            self._owner = fetch or (lambda: owner)

    @classmethod
    def attribute(cls, owner: Any, name: str, path: str) -> Slot:
        """An attribute; of a module, where the module keeps it."""
        own = getattr(owner, "__dict__", {})
        if isinstance(owner, torch.nn.Module) and name not in own:
            for table in ("_buffers", "_parameters", "_modules"):
                if name in own.get(table, ()):
                    return cls(own[table], "item", name, path, table == "_buffers")
        is_tensor = isinstance(owner, torch.nn.Module) and isinstance(own.get(name), Tensor)
        return cls(owner, "attribute", name, path, is_tensor)

    @classmethod
    def item(cls, owner: Any, key: Any, path: str, fetch: Callable[[], Any] | None = None) -> Slot:
        """An item; `fetch` finds its owner."""
        return cls(owner, "item", key, path, fetch=fetch)

    @classmethod
    def cell(cls, owner: Any, name: str) -> Slot:
        return cls(owner, "attribute", "cell_contents", name)

    @property
    def place(self) -> tuple[int, str, Any]:
        """What tells it apart: its owner's identity, the kind, the key."""
        return id(self._owner()), "items" if self.kind == "item" else "attributes", self.key

    def get(self) -> Any:
        """What stands there now."""
        owner = self._owner()
        if self.kind == "attribute":
            try:
                return getattr(owner, self.key, MISSING)
            except ValueError:  # an empty variable
                return MISSING
        try:
            return owner[self.key]
        except (KeyError, IndexError, TypeError):
            return MISSING

    def set(self, value: Any) -> None:
        """Put a value there, or nothing."""
        owner = self._owner()
        if owner is None:
            return
        if self.kind == "attribute":
            if value is not MISSING:
                setattr(owner, self.key, value)
            elif self.get() is not MISSING:
                delattr(owner, self.key)
        elif value is not MISSING:
            owner[self.key] = value
        elif self.get() is not MISSING:
            del owner[self.key]


class Written:
    """One slot that the code writes, and what stood there before."""

    def __init__(self, slot: Slot):
        self.slot = slot
        self.before = slot.get()
        self.stored = False
        self.line: int | None = None
        self.file: str | None = None
        self.counts = 0  # statements that count it up


class Contained(NamedTuple):
    """A container that the code can reach.

    Attributes:
        path: as one would write it.
        now: itself.
        before: a copy of what it was.
        fetch: gives what stands in its place.
        line: file and line of the user's, where it was read first.
    """

    path: str
    now: Any
    before: Any
    fetch: Callable[[], Any]
    line: tuple[str | None, int | None]


class Watched:
    """A tensor that was there before the code ran, and what of it the code may change beside its values.

    Attributes:
        path: as one would write it; empty for an argument.
        requires_grad: what it was, for a leaf; None otherwise.
    """

    __slots__ = ("_geometry", "_reference", "_storage", "path", "requires_grad")

    def __init__(self, path: str, tensor: Tensor):
        self.path = path
        self._reference = weakref.ref(tensor)
        self.requires_grad = tensor.requires_grad if tensor.is_leaf else None
        self._storage = tensor.untyped_storage() if tensor.device.type == "jax" else None
        self._geometry = _geometry(tensor)

    @property
    def name(self) -> str:
        """For a message."""
        return f"`{self.path}`" if self.path else "an argument"

    def tensor(self) -> Tensor | None:
        """The tensor, while it lives."""
        return self._reference()

    def flag(self) -> bool | None:
        """What its `requires_grad` is now, where the code changed it."""
        tensor = self._reference()
        if tensor is None or self.requires_grad in (None, tensor.requires_grad):
            return None
        return not self.requires_grad

    def moved(self) -> Tensor | None:
        """The tensor, where it lies in other memory now or in another way (`.data =`, `resize_`, `t_`)."""
        tensor = self._reference()
        if tensor is None or self._storage is None:
            return None
        same = tensor.untyped_storage().buffer is self._storage.buffer  # type: ignore[attr-defined]  # ours
        return None if same and _geometry(tensor) == self._geometry else tensor

    def in_place(self, tensor: Tensor) -> bool:
        """Whether the tensor has the geometry that this one had."""
        return _geometry(tensor) == self._geometry

    def put_back(self) -> None:
        """Give the tensor the memory that it had."""
        tensor = self.moved()
        if tensor is not None and self._storage is not None:
            size, stride, offset, _ = self._geometry
            with torch.no_grad():  # it may be a leaf
                private.put_on_storage(tensor, self._storage, offset, size, stride)

    def restore(self) -> None:
        """Give the tensor back what it had."""
        self.put_back()
        tensor = self._reference()
        if tensor is not None and self.flag() is not None and tensor.is_leaf:
            tensor.requires_grad_(self.requires_grad)  # type: ignore[arg-type]  # not None


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


class DataSlot:
    """`tensor.data`, as a place that code writes."""

    is_buffer = False

    def __init__(self, tensor: Tensor):
        self._tensor = weakref.ref(tensor)

    def set(self, value: Tensor) -> None:
        """Give the tensor this memory."""
        tensor = self._tensor()
        if tensor is not None:
            tensor.data = value


class Effects:
    """What one trace did to Python state."""

    def __init__(self) -> None:
        self.written: dict[Any, Written] = {}
        self.containers: list[Contained] = []
        self._known: set[int] = set()
        self.tensors: dict[int, Watched] = {}

    def store(self, slot: Slot, line: int | None, file: str) -> None:
        """The code is about to assign to the slot, perhaps."""
        written = self._of(slot)
        written.stored = True
        written.line, written.file = line, file

    def count(self, slot: Slot) -> None:
        """The code is about to count the slot up."""
        self._of(slot).counts += 1

    def _of(self, slot: Slot) -> Written:
        known = self.written.get(slot.place)
        if known is None:
            known = self.written[slot.place] = Written(slot)
        return known

    def contain(
        self,
        path: str,
        container: Any,
        fetch: Callable[[], Any],
        line: tuple[str | None, int | None],
    ) -> None:
        """A container that the code can reach; `fetch` gives what stands in its place, `line` is the user's."""
        if isinstance(container, list | dict | set | deque) and id(container) not in self._known:
            self._known.add(id(container))  # which stays its own: the container is held
            self.containers.append(Contained(path, container, container.copy(), fetch, line))

    def watch(self, path: str, tensor: Tensor) -> None:
        """A tensor that the code can reach."""
        if id(tensor) not in self.tensors:
            self.tensors[id(tensor)] = Watched(path, tensor)

    def changed(self) -> list[Written]:
        """The slots that hold something else than before."""
        return [w for w in self.written.values() if w.slot.get() is not w.before]

    def forget_replaced(self) -> None:
        """Let go of containers that the code put others in the place of: they may hold tensors of the trace."""
        self.containers = [c for c in self.containers if _stands(c.fetch, c.now)]
        for written in self.written.values():
            replaced = isinstance(written.before, list | dict | set | deque)
            if replaced and written.slot.get() is not written.before:
                written.before = _REPLACED

    def filled(self) -> list[Contained]:
        """The containers that hold something else, and are where they were."""
        return [
            c
            for c in self.containers
            if not same_contents(c.now, c.before) and _stands(c.fetch, c.now)
        ]

    def restore(self) -> None:
        """Give everything back."""
        for c in self.containers:
            if not same_contents(c.now, c.before):
                put_contents(c.now, c.before)
        for written in self.written.values():
            if written.before is not _REPLACED and written.slot.get() is not written.before:
                written.slot.set(written.before)
        for watched in self.tensors.values():
            watched.restore()


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


class EndSlot:
    """The end of a list, as a place that code writes."""

    is_buffer = False

    def __init__(self, fetch: Callable[[], Any]):
        self._fetch = fetch

    def set(self, value: Tensor) -> None:
        """Append a tensor."""
        self._fetch().append(value)


def _stands(fetch: Callable[[], Any], container: Any) -> bool:
    try:
        return fetch() is container
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return False


def same_contents(now: Any, before: Any) -> bool:
    """Whether a container holds what it held, in that order."""
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
    """Make a container hold what another one holds."""
    if isinstance(container, list):
        container[:] = contents
        return
    container.clear()
    (container.extend if isinstance(container, deque) else container.update)(contents)
