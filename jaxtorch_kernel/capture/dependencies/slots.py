"""Places that code writes: an attribute, an item, a variable of a closure; `tensor.data`; the end of a list.

A slot finds its place again at each run: by a weak reference to the owner or, if the owner does not support one (a
dictionary), by a fetch of the current owner.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .tokens import MISSING

Tensor = torch.Tensor


class Slot:
    """A place that code writes: an attribute, an item, a variable of a closure.

    Attributes:
        owner: returns the owner, or None if it no longer exists.
        key: an attribute's name, an item's key.
        path: as in source code.
        is_buffer: a module's buffer, or another tensor among its attributes.
    """

    __slots__ = ("is_buffer", "key", "kind", "owner", "path")

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
            self.owner: Callable[[], Any] = weakref.ref(owner)
        except TypeError:  # another dictionary may stand there at a run
            self.owner = fetch or (lambda: owner)

    @classmethod
    def attribute(cls, owner: Any, name: str, path: str) -> Slot:
        """An attribute; of a torch module, where the module keeps it; of a Python module, a global."""
        own = getattr(owner, "__dict__", {})
        if isinstance(owner, types.ModuleType):  # as its functions write it
            return cls(own, "item", name, path)
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
        """A variable of a closure."""
        return cls(owner, "attribute", "cell_contents", name)

    @property
    def place(self) -> tuple[int, str, Any]:
        """Its identity: the owner's id, the kind and the key."""
        return id(self.owner()), "items" if self.kind == "item" else "attributes", self.key

    def get(self) -> Any:
        """The current value."""
        owner = self.owner()
        if self.kind == "attribute":
            try:
                return getattr(owner, self.key, MISSING)
            except Exception:  # an empty variable; a `__getattr__` of the user's may raise anything
                return MISSING
        try:
            return owner[self.key]
        except (KeyError, IndexError, TypeError):
            return MISSING

    def set(self, value: Any) -> None:
        """Set the value, or delete it."""
        owner = self.owner()
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


class EndSlot:
    """The end of a list, as a place that code writes."""

    is_buffer = False

    def __init__(self, fetch: Callable[[], Any]):
        self._fetch = fetch

    def set(self, value: Tensor) -> None:
        """Append a tensor."""
        self._fetch().append(value)
