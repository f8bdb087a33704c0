"""Slots: the targets of assignments in captured code.

A `Slot` is an attribute, an item or a closure variable. It finds its owner again at each run: by a weak reference or,
if the owner does not support one (a dictionary), by a fetch of the current owner. The other two targets are
`tensor.data` and the end of a list.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, Protocol

import torch

from .fetch import GONE, Fetch, item_of, made
from .reads import ATTRIBUTE, ITEM
from .tokens import MISSING

Tensor = torch.Tensor


class Target(Protocol):
    """Where a run can store a tensor.

    Attributes:
        is_buffer: whether it is a module's buffer, or another tensor among a module's attributes.
    """

    is_buffer: bool

    def set(self, value: Tensor) -> None:
        """Store the tensor."""


class Slot:
    """An attribute, an item or a closure variable that code assigns.

    Attributes:
        owner: returns the owner, or None if it no longer exists.
        kind: ATTRIBUTE or ITEM.
        key: an attribute's name, an item's key.
        path: as in source code.
        is_buffer: as in `Target`.
    """

    __slots__ = ("is_buffer", "key", "kind", "owner", "path")

    def __init__(
        self,
        owner: object,
        kind: str,
        key: Any,
        path: str,
        is_buffer: bool = False,
        fetch: Fetch | None = None,
    ):
        self.kind, self.key, self.path, self.is_buffer = kind, key, path, is_buffer
        try:
            self.owner: Fetch = weakref.ref(owner)
        except TypeError:  # the owner at a run may be a different dictionary
            self.owner = fetch or (lambda: owner)

    @classmethod
    def attribute(cls, owner: object, name: str, path: str) -> Slot:
        """An attribute; of a torch module, where the module stores it; of a Python module, a global."""
        attributes = getattr(owner, "__dict__", {})
        if isinstance(owner, types.ModuleType):  # as its own functions assign it
            return cls(attributes, ITEM, name, path)
        if isinstance(owner, torch.nn.Module) and name not in attributes:
            for table in ("_buffers", "_parameters", "_modules"):
                if name in attributes.get(table, ()):
                    return cls(attributes[table], ITEM, name, path, table == "_buffers")
        is_tensor = isinstance(owner, torch.nn.Module) and isinstance(attributes.get(name), Tensor)
        return cls(owner, ATTRIBUTE, name, path, is_tensor)

    @classmethod
    def item(cls, owner: object, key: object, path: str, fetch: Fetch | None = None) -> Slot:
        """An item; `fetch` finds its owner."""
        return cls(owner, ITEM, key, path, fetch=fetch)

    @classmethod
    def variable(cls, cell: types.CellType, name: str) -> Slot:
        """A closure variable."""
        return cls(cell, ATTRIBUTE, "cell_contents", name)

    @property
    def identity(self) -> tuple[int, str, object]:
        """The owner's id, the kind and the key: equal for two slots if they are the same."""
        return id(self.owner()), self.kind, self.key

    def container(self) -> object:
        """What holds the value under `key`: the owner, or the `__dict__` of the object that is the owner."""
        owner = self.owner()
        return owner if self.kind == ITEM else getattr(owner, "__dict__", None)

    def get(self) -> object:
        """The current value; MISSING if there is none, or no owner."""
        try:
            owner: Any = self.owner()
        except GONE:
            return MISSING
        if self.kind == ATTRIBUTE:
            try:
                return getattr(owner, self.key, MISSING)
            except (
                Exception
            ):  # an empty variable; or a user's `__getattr__`, which may raise anything
                return MISSING
        try:
            return item_of(owner, self.key)
        except (KeyError, IndexError, TypeError):
            return MISSING

    def set(self, value: object) -> None:
        """Set the value, or delete it if it is MISSING."""
        owner: Any = self.owner() if value is MISSING else made(self.owner)
        if owner is None:
            return
        if self.kind == ATTRIBUTE:
            if value is not MISSING:
                setattr(owner, self.key, value)
            elif self.get() is not MISSING:
                delattr(owner, self.key)
        elif value is not MISSING:
            owner[self.key] = value
        elif self.get() is not MISSING:
            del owner[self.key]


class DataSlot:
    """`tensor.data`, as the target of an assignment."""

    is_buffer = False

    def __init__(self, tensor: Tensor):
        self._tensor = weakref.ref(tensor)

    def set(self, value: Tensor) -> None:
        """Give the tensor this memory."""
        tensor = self._tensor()
        if tensor is not None:
            tensor.data = value


class ListEnd:
    """The end of a list: storing a tensor there appends it."""

    is_buffer = False

    def __init__(self, fetch: Fetch):
        self._fetch = fetch

    def set(self, value: Tensor) -> None:
        """Append a tensor."""
        made(self._fetch).append(value)
