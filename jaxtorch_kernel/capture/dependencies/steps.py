"""One step of a read: from an owner to the value of one of its attributes or items, with a guard on it.

Where an attribute is stored depends on its owner, and the guard goes to that place: the dictionary of a Python module,
a torch module's table of tensors, the class for a method or a class variable, otherwise the object itself. A step
returns None if its chain cannot continue: the attribute does not exist, or reading it runs code that is recorded when
it runs (a property, `__getattr__`).

The value that a step finds may have to be inspected in turn: a function has defaults, which are values (`values.py`),
and their contents are read by steps. Two objects with references to each other would keep their notes (tables of
tensors) alive until the garbage collector runs. So `Values` is a subclass of `Steps` and defines `found`.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import torch

from ...programs.site import is_user_file
from .fetch import Fetch, Found, ModuleTable, class_table, element, reader, ref, strong
from .followed import is_users_module
from .guard import ATTRIBUTES, ITEMS
from .notes import Notes
from .tokens import CONTAINERS, MISSING, is_plain, is_users_class

Tensor = torch.Tensor
_TENSORS = "_parameters", "_buffers"
# Of classes whose attributes are what their `__dict__` holds.
_PLAIN_GETTERS: Any = (object.__getattribute__, types.SimpleNamespace.__getattribute__)


class Steps(ABC):
    """Takes steps, and notes them.

    Args:
        notes: of the trace.
    """

    def __init__(self, notes: Notes):
        self.notes = notes

    @abstractmethod
    def found(self, path: str, value: Any, fetch: Fetch) -> None:
        """A value is guarded for the first time: look into it."""

    def guard(
        self, owner: Any, kind: str, key: Any, value: Any, path: str, fetch: Fetch
    ) -> Found | None:
        """Guard one value of an owner; what was noted first stays."""
        owner_fetch, is_new = self.notes.guard(owner, kind, key, value, path, fetch)
        if self.notes.is_new_tree(owner, kind, key, value):
            return None
        read = reader(owner_fetch, kind, key)
        value = self.notes.as_before(owner, kind, key, value)
        if is_new:
            self.found(path, value, read)
        if value is MISSING:
            return None
        if not isinstance(value, Tensor):
            self.notes.meet(value, path)
        return path, value, read

    def item(self, owner: Any, key: Any, path: str, fetch: Fetch) -> Found | None:
        """What a container holds under a key; `path` is that of the item."""
        if isinstance(owner, dict):
            value = owner.get(key, MISSING)
            return self.guard(owner, ITEMS, key, value, path, fetch)
        if type(owner) is tuple or isinstance(owner, tuple):
            try:
                value = owner[key]
            except (IndexError, TypeError):
                return None
            return self.guard(owner, ITEMS, key, value, path, fetch)
        if type(owner) in (list, deque) and isinstance(key, int):
            if not -len(owner) <= key < len(owner):
                return None
            return self.guard(owner, ITEMS, key, owner[key], path, fetch)
        return None

    def attribute(self, owner: Any, name: str, path: str, fetch: Fetch) -> Found | None:
        """An attribute; `path` is that of its owner."""
        where = f"{path}.{name}"
        if isinstance(owner, types.ModuleType):
            return self._of_python_module(owner, name, where)
        if isinstance(owner, type):
            return self.of_class(owner, name, where, fetch)
        own = getattr(owner, "__dict__", None)
        if name == "__class__":
            return self.guard(owner, ATTRIBUTES, name, type(owner), where, ref(owner))
        if name == "__dict__" and isinstance(own, dict):
            return where, own, reader(ref(owner), ATTRIBUTES, name)
        if isinstance(owner, torch.nn.Module) and isinstance(own, dict) and name not in own:
            known = self.of_module(owner, name, where)
            if known is not None or any(name in own.get(t, ()) for t in _TENSORS):
                return known  # or it is lent
        fetch = ref(owner)
        if isinstance(own, dict) and name in own:
            getter: Any = type(owner).__getattribute__
            if getter in _PLAIN_GETTERS and name.isidentifier():
                return self.guard(owner, ATTRIBUTES, name, own[name], where, fetch)
            return self.item(own, name, where, lambda: fetch().__dict__)
        return self._through_class(owner, name, where, fetch, own is not None)

    def _of_python_module(self, module: types.ModuleType, name: str, where: str) -> Found | None:
        if is_users_module(module) or name in vars(module):
            return self.item(vars(module), name, where, strong(vars(module)))
        value = getattr(module, name, None)
        return None if value is None else (where, value, strong(value))

    def of_module(self, module: torch.nn.Module, name: str, where: str) -> Found | None:
        """A parameter, buffer or submodule of a torch module."""
        own = vars(module)
        for table in _TENSORS:
            if name in own.get(table, ()):
                if id(own[table]) in self.notes.own.tables:
                    return None
                value = own[table][name]
                self.notes.table(where.rpartition(".")[0], module, own[table])
                return where, value, element(ModuleTable(ref(module), table), name)
        if name in own.get("_modules", ()):
            return self.item(own["_modules"], name, where, ModuleTable(ref(module), "_modules"))
        return None

    def _through_class(
        self, owner: Any, name: str, where: str, fetch: Fetch, has_dict: bool
    ) -> Found | None:
        """An attribute that is not in the object's own dictionary: on its class, in a slot, or missing."""
        raw = _on_class(type(owner), name)
        if isinstance(raw, types.FunctionType):
            file = raw.__code__.co_filename
            if not is_user_file(file) and not isinstance(owner, torch.nn.Module):
                return None
            return self.guard(owner, ATTRIBUTES, f"{name}.__func__", raw, where, fetch)
        if isinstance(raw, types.MemberDescriptorType):
            value = getattr(owner, name, MISSING)
            return self.guard(owner, ATTRIBUTES, name, value, where, fetch)
        if raw is MISSING:
            fallback = getattr(type(owner), "__getattr__", None)
            if fallback not in (None, torch.nn.Module.__getattr__):
                self._absent(owner, name, where)
                return None
            return self.guard(owner, ATTRIBUTES, name, MISSING, where, fetch) if has_dict else None
        if is_plain(raw) or isinstance(raw, CONTAINERS):
            return self.guard(owner, ATTRIBUTES, name, raw, where, fetch)
        for base in type(owner).__mro__ if is_users_class(type(owner)) else ():
            if name in vars(base):  # a property or another descriptor: its own code runs
                self.of_bases(type(owner), name, base)
                self.notes.meet(raw, where)
                if not hasattr(type(raw), "__set__"):
                    self._absent(owner, name, where)
                break
        return None

    def _absent(self, owner: Any, name: str, where: str) -> None:
        """Guard that an object has no own attribute of that name, so that its class provides it."""
        own = getattr(owner, "__dict__", None)
        if isinstance(own, dict) and name not in own:
            table = reader(ref(owner), ATTRIBUTES, "__dict__")
            self.guard(own, ITEMS, name, MISSING, where, table)

    def of_class(self, cls: type, name: str, where: str, fetch: Fetch) -> Found | None:
        """An attribute of a class, on whichever base it is defined."""
        raw = _on_class(cls, name)
        if not is_users_class(cls):
            return None
        if name == "apply" and issubclass(cls, torch.autograd.Function):  # which finds these in C
            for part in ("forward", "backward", "setup_context", "jvp", "vmap"):
                self.of_class(cls, part, f"{where.removesuffix('apply')}{part}", fetch)
        if raw is MISSING:
            meta: Any = type(cls)
            for base in meta.__mro__ if is_users_class(meta) else ():
                if name in vars(base):
                    self.of_base(base, name)
                    return None
            return self.guard(cls, ATTRIBUTES, name, MISSING, where, fetch)
        if isinstance(raw, classmethod):
            return self.guard(cls, ATTRIBUTES, f"{name}.__func__", raw.__func__, where, fetch)
        if isinstance(raw, staticmethod):
            raw = raw.__func__
        if isinstance(raw, property):  # its code runs
            self.of_bases(cls, name, next(base for base in cls.__mro__ if name in vars(base)))
            return None
        if isinstance(raw, types.MemberDescriptorType):
            return None
        return self.guard(cls, ATTRIBUTES, name, raw, where, fetch)

    def of_bases(self, cls: type, name: str, base: type) -> None:
        """An attribute of one of the bases of a class, and a guard that no earlier base defines it."""
        for other in cls.__mro__[: cls.__mro__.index(base)]:
            if is_users_class(other) and name not in vars(other):
                self.of_base(other, name)
        self.of_base(base, name)

    def of_base(self, base: type, name: str) -> None:
        """The entry of a name in the dictionary of one class, present or not."""
        if not self.notes.is_first((id(base), "on it", name)):
            return
        where, value = f"{base.__name__}.{name}", vars(base).get(name, MISSING)
        self.guard(vars(base), ITEMS, name, value, where, class_table(ref(base)))


def _on_class(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING
