"""One step of a read: from an owner to the value of one of its attributes or items, with a guard on it.

Where an attribute is stored depends on its owner, and the guard goes to that place: the dictionary of a Python module,
a torch module's table of tensors, the class for a method or a class variable, otherwise the object itself. A step
returns None if its chain cannot continue: the attribute does not exist, or reading it runs code that is recorded when
it runs (a property, `__getattr__`).

The value that a step reads may have to be inspected in turn: a function has defaults, which are values (`values.py`),
and their contents are read by steps. Two objects with references to each other would keep their notes (tables of
tensors) alive until the garbage collector runs. So `Values` is a subclass of `Steps` and defines `inspect`.
"""

from __future__ import annotations

import inspect
import sys
import types
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import torch

from ...programs.site import is_user_file
from .fetch import Fetch, ModuleTable, Resolved, class_table, element, reader, ref, strong
from .followed import is_list_of_parameters, is_user_module
from .host_number import OF_MODULES, HostNumber
from .notes import Notes
from .reads import ATTRIBUTE, ITEM
from .tokens import CONTAINERS, MISSING, is_plain, is_plain_container, is_user_class

Tensor = torch.Tensor
_TENSOR_TABLES = "_parameters", "_buffers"
# Classes with one of these lookups have the attributes that are in their `__dict__`.
_PLAIN_LOOKUPS: tuple[object, ...] = (
    object.__getattribute__,
    types.SimpleNamespace.__getattribute__,
)


class Steps(ABC):
    """Takes steps, and notes them.

    Args:
        notes: of the trace.
    """

    def __init__(self, notes: Notes):
        self.notes = notes

    @abstractmethod
    def inspect(self, path: str, value: object, fetch: Fetch) -> None:
        """Called for each value that is guarded for the first time."""

    def guard(
        self, owner: object, kind: str, key: Any, value: object, path: str, fetch: Fetch
    ) -> Resolved | None:
        """Guard one value of an owner; the first guard of a value stays."""
        previous = self.notes.effects.previous(owner, kind, key, value)
        owner_fetch, is_new = self.notes.guard(owner, kind, key, previous, path, fetch)
        if self.notes.objects.is_new(value, previous):
            return None
        if is_plain_container(
            previous
        ):  # the code may have read it before it put another one there
            value = previous
        # What the code has moved here is found here only while it runs.
        read = reader(owner_fetch, kind, key) if previous is value else ref(value)
        if is_new:
            self.inspect(path, value, read)
        if value is MISSING:
            return None
        if not isinstance(value, Tensor):
            self.notes.objects.add_preexisting(value, path)
        return Resolved(path, value, read)

    def item(self, owner: object, key: Any, path: str, fetch: Fetch) -> Resolved | None:
        """The item of a container under a key; `path` is that of the item."""
        if isinstance(owner, dict):
            value = dict.get(owner, key, MISSING)
            return self.guard(owner, ITEM, key, value, path, fetch)
        if isinstance(owner, tuple):
            try:
                value = owner[key]
            except (IndexError, TypeError):
                return None
            return self.guard(owner, ITEM, key, value, path, fetch)
        if (type(owner) is list or type(owner) is deque) and isinstance(key, int):
            if not -len(owner) <= key < len(owner):
                return None
            if self.notes.effects.previous(owner, ITEM, key, owner[key]) is MISSING:
                return None  # the code has appended it
            return self.guard(owner, ITEM, key, owner[key], path, fetch)
        return None

    def attribute(self, owner: object, name: str, path: str, fetch: Fetch) -> Resolved | None:
        """An attribute; `path` is that of its owner."""
        where = f"{path}.{name}"
        if isinstance(owner, types.ModuleType):
            return self._python_module_attribute(owner, name, where)
        if isinstance(owner, type):
            return self.class_attribute(owner, name, where, fetch)
        fetch = ref(owner)
        attributes = getattr(owner, "__dict__", None)
        if name == "__class__":
            return self.guard(owner, ATTRIBUTE, name, type(owner), where, fetch)
        if not isinstance(attributes, dict):
            return self._through_class(owner, name, where, fetch, attributes is not None)
        if name == "__dict__":
            return Resolved(where, attributes, reader(fetch, ATTRIBUTE, name))
        if isinstance(owner, torch.nn.Module) and name not in attributes:
            resolved = self.module_entry(owner, name, where)
            # A tensor in a table that is excluded is resolved to None.
            if resolved is not None or any(name in attributes.get(t, ()) for t in _TENSOR_TABLES):
                return resolved
        if is_list_of_parameters(owner, name):
            return None
        if name in attributes:
            lookup: object = type(owner).__getattribute__
            if lookup in _PLAIN_LOOKUPS and name.isidentifier():
                return self.guard(owner, ATTRIBUTE, name, attributes[name], where, fetch)
            self.notes.effects.owners[id(attributes)] = id(owner)
            return self.item(attributes, name, where, reader(fetch, ATTRIBUTE, "__dict__"))
        return self._through_class(owner, name, where, fetch, True)

    def _python_module_attribute(
        self, module: types.ModuleType, name: str, where: str
    ) -> Resolved | None:
        if name in OF_MODULES.get(module, ()):  # replaced during the trace
            return None
        if is_user_module(module) or name in vars(module):
            return self.item(vars(module), name, where, strong(vars(module)))
        value = getattr(module, name, None)
        return None if value is None else Resolved(where, value, strong(value))

    def module_entry(self, module: torch.nn.Module, name: str, where: str) -> Resolved | None:
        """A parameter, buffer or submodule of a torch module."""
        attributes = vars(module)
        for table in _TENSOR_TABLES:
            if name in attributes.get(table, ()):
                entries = attributes[table]
                if id(entries) in self.notes.excluded.tables:
                    return None
                self.notes.table(where.rpartition(".")[0], module, entries)
                fetch = element(ModuleTable(ref(module), table), name)
                return Resolved(where, entries[name], fetch)
        if name in attributes.get("_modules", ()):
            children = ModuleTable(ref(module), "_modules")
            self.notes.effects.owners[id(attributes["_modules"])] = id(module)
            return self.item(attributes["_modules"], name, where, children)
        return None

    def _through_class(
        self, owner: object, name: str, where: str, fetch: Fetch, has_dict: bool
    ) -> Resolved | None:
        """An attribute that is not in the object's own dictionary: on its class, in a slot, or missing."""
        raw = _on_class(type(owner), name)
        if isinstance(raw, types.FunctionType):
            file = raw.__code__.co_filename
            if not is_user_file(file) and not isinstance(owner, torch.nn.Module):
                return None
            return self.guard(owner, ATTRIBUTE, f"{name}.__func__", raw, where, fetch)
        if isinstance(raw, types.MemberDescriptorType):
            value = getattr(owner, name, MISSING)
            return self.guard(owner, ATTRIBUTE, name, value, where, fetch)
        if raw is MISSING:
            fallback = getattr(type(owner), "__getattr__", None)
            if fallback not in (None, torch.nn.Module.__getattr__):
                self._guard_absence(owner, name, where)
                return None
            return self.guard(owner, ATTRIBUTE, name, MISSING, where, fetch) if has_dict else None
        if _varies(raw):
            # A program reads this number from the class, and accepts any number. So a guard on the number that the
            # owner has would also accept one that the owner, or another class, has got in the meantime.
            self._guard_absence(owner, name, where)
            self._of_class(owner, name, where)
            return None
        if is_plain(raw) or isinstance(raw, CONTAINERS):
            return self.guard(owner, ATTRIBUTE, name, raw, where, fetch)
        if _is_c_field(raw) and is_plain(value := getattr(owner, name, MISSING)):
            return self.guard(owner, ATTRIBUTE, name, value, where, fetch)
        if is_user_class(type(owner)):  # a property or another descriptor: its own code runs
            self._of_class(owner, name, where)
            self.notes.objects.add_preexisting(raw, where)
            if not hasattr(type(raw), "__set__"):
                self._guard_absence(owner, name, where)
        return None

    def _of_class(self, owner: object, name: str, where: str) -> None:
        """Guard that an object has the same class, and this class the same entry of that name."""
        cls = type(owner)
        self.guard_class(owner, where.rpartition(".")[0])
        self._first_entry(cls, name)

    def guard_class(self, owner: object, path: str) -> None:
        """Guard which class an object has, unless it claims to be of another one, as a mock or a proxy does."""
        if owner.__class__ is not type(owner):
            return
        self.guard(owner, ATTRIBUTE, "__class__", type(owner), f"type({path})", ref(owner))

    def _guard_absence(self, owner: object, name: str, where: str) -> None:
        """Guard that an object has no attribute of that name itself, so that its class provides it."""
        attributes = getattr(owner, "__dict__", None)
        if isinstance(attributes, dict) and name not in attributes:
            table = reader(ref(owner), ATTRIBUTE, "__dict__")
            self.guard(attributes, ITEM, name, MISSING, where, table)

    def class_attribute(self, cls: type, name: str, where: str, fetch: Fetch) -> Resolved | None:
        """An attribute of a class, on whichever base it is defined."""
        raw = _on_class(cls, name)
        if not is_user_class(cls):
            return None
        if name == "__dict__":  # each read gives another proxy of the same table
            return Resolved(where, vars(cls), class_table(fetch))
        if name == "apply" and issubclass(cls, torch.autograd.Function):  # C code looks these up
            for part in ("forward", "backward", "setup_context", "jvp", "vmap"):
                self.class_attribute(cls, part, f"{where.removesuffix('apply')}{part}", fetch)
        if raw is MISSING:
            return self._through_metaclass(cls, name, where, fetch)
        if isinstance(raw, classmethod):
            return self.guard(cls, ATTRIBUTE, f"{name}.__func__", raw.__func__, where, fetch)
        if isinstance(raw, staticmethod):
            raw = raw.__func__
        if isinstance(raw, property):  # its code runs
            self._first_entry(cls, name)
            return None
        if isinstance(raw, types.MemberDescriptorType):
            return None
        if _varies(raw) and name not in vars(cls):
            self._first_entry(cls, name)
            return None
        return self.guard(cls, ATTRIBUTE, name, raw, where, fetch)

    def _through_metaclass(self, cls: type, name: str, where: str, fetch: Fetch) -> Resolved | None:
        """An attribute that neither a class nor its bases define: on its metaclass, or missing."""
        meta = type(cls)
        raw = _on_class(meta, name) if is_user_class(meta) else MISSING
        if not hasattr(type(raw), "__get__"):
            return self.guard(cls, ATTRIBUTE, name, raw, where, fetch)
        self._first_entry(meta, name)
        for base in filter(is_user_class, cls.__mro__):  # it may get the attribute itself
            self.base_entry(base, name)
        return None

    def _first_entry(self, cls: type, name: str) -> None:
        """Guard an attribute of a class on the first of its bases that defines it."""
        self.base_entries(cls, name, next(b for b in inspect.getmro(cls) if name in vars(b)))

    def base_entries(self, cls: type, name: str, base: type) -> None:
        """Guard an attribute of one of the bases of a class, its bases, and that no earlier one has the attribute."""
        if sum(map(is_user_class, cls.__mro__)) > 1:
            where = f"{cls.__name__}.__mro__"
            self.notes.contents(where, cls.__mro__, reader(ref(cls), ATTRIBUTE, "__mro__"))
        for other in cls.__mro__[: cls.__mro__.index(base)]:
            if is_user_class(other) and name not in vars(other):
                self.base_entry(other, name)
        self.base_entry(base, name)

    def base_entry(self, base: type, name: str) -> None:
        """Guard the entry of a name in the dictionary of one class, present or not."""
        if not self.notes.is_first((id(base), "entry", name)):
            return
        where, value = f"{base.__name__}.{name}", vars(base).get(name, MISSING)
        self.guard(vars(base), ITEM, name, value, where, class_table(ref(base)))


def _varies(raw: object) -> bool:
    """Whether this is a number that varies, or a tuple with one: what a slot may hold during a trace."""
    return any(type(part) is HostNumber for part in (raw if type(raw) is tuple else (raw,)))


def _is_c_field(raw: object) -> bool:
    """Whether an attribute is a field of an object of the standard library's C code (`ctypes`, `decimal.Context`)."""
    if isinstance(raw, types.GetSetDescriptorType):
        module = raw.__objclass__.__module__
        return module != "builtins" and module in sys.stdlib_module_names
    return type(raw).__module__ in ("_ctypes", "ctypes")  # the latter since Python 3.14


def _on_class(cls: type, name: str) -> object:
    for base in cls.__mro__:
        if name in vars(base):
            value: object = vars(base)[name]
            return value
    return MISSING
