"""Snapshots of the objects that code can reach, taken before the code changes them.

Most writes are visible in the code: `self.n += 1` names the place. Others do not name the object whose attribute they
set: `make().n = 1`, `for c in counters: c.n += 1`. So the attributes of each user object are recorded when the code
first reaches it, and compared after the code has run.
"""

from __future__ import annotations

import argparse
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ...programs.site import is_user_file
from .followed import OF_EVERY_MODULE, is_users_module
from .slots import Slot
from .tokens import MISSING, class_names, is_users_class

_DESCRIPTORS = (
    staticmethod,
    classmethod,
    property,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_SETTINGS = (types.SimpleNamespace, argparse.Namespace)
_MOST = 4096  # objects and containers
_LONGEST = 256  # of a container that is looked into

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, tuple)
_Reached = tuple[Any, str, Any]  # a value, its path, what holds it
Written = tuple[Slot, Any]  # a place, and what stood there
Filled = tuple[str, Any, Any]  # a path, a container, a copy of what it held


class Snapshots:
    """The user objects and containers that code can reach, with their contents when first reached."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._objects: list[_Snapshot] = []
        self._containers: dict[int, _Container] = {}

    def take(self, value: Any, path: str) -> None:
        """Of an object, and of what can be reached from it."""
        waiting: list[_Reached] = [(value, path, None)]
        while waiting and len(self._seen) + len(self._containers) < _MOST:
            value, path, holder = waiting.pop()
            if type(value) in _CONTAINERS:
                if (
                    holder is not None
                ):  # what has a name is found again by it, with guards and effects of its own
                    waiting += self._container(value, path, holder)
            elif isinstance(value, types.ModuleType) and holder is not None:
                continue  # its names are many: only of one that the code names
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                waiting += self._object(value, path)

    def _object(self, value: Any, path: str) -> list[_Reached]:
        """Remember what an object holds; what it leads to."""
        if isinstance(value, types.MethodType):
            return [(value.__self__, path, value)]
        if isinstance(value, functools.partial):
            return [(part, path, value) for part in (value.func, value.args, value.keywords)]
        found: list[_Reached] = []
        if isinstance(value, torch.nn.Module):
            found += [(m, f"{path}.{name}", value) for name, m in value._modules.items()]
        read = _reader(value)
        if read is None:
            return found
        snapshot = _Snapshot(value, path, read)
        self._objects.append(snapshot)
        if isinstance(value, types.ModuleType):
            return []
        found += [(v, f"{path}.{name}", value) for name, v in snapshot.before.items()]
        if isinstance(value, types.FunctionType):
            cells = zip(value.__closure__ or (), value.__code__.co_freevars, strict=True)
            found += [(cell, name, value) for cell, name in cells]
        elif not isinstance(value, types.CellType | type):
            found.append((type(value), type(value).__name__, value))
        return found

    def _container(self, value: Any, path: str, holder: Any) -> list[_Reached]:
        if id(value) in self._containers or len(value) > _LONGEST:
            return []
        copy = value if type(value) is tuple else value.copy()
        self._containers[id(value)] = _Container(path, value, copy, holder)
        elements = value.values() if isinstance(value, dict) else value
        return [(element, path, value) for element in elements]

    def before(self, container: Any) -> Any:
        """What a container held; None where that is not known."""
        known = self._containers.get(id(container))
        return None if known is None else known.before

    def written(self) -> Iterator[Written]:
        """The places whose object has changed."""
        for snapshot in self._objects:
            yield from snapshot.written()

    def filled(self) -> Iterator[Filled]:
        """The containers that can have changed, where they are what they were found in."""
        for path, now, before, holder in self._containers.values():
            if type(now) is not tuple and any(part is now for part in _parts(holder)):
                yield path, now, before


class _Container(NamedTuple):
    path: str
    now: Any
    before: Any
    holder: Any


def _parts(holder: Any) -> Iterable[Any]:
    """What an object or a container holds now."""
    if isinstance(holder, functools.partial):
        return holder.args, holder.keywords
    if type(holder) in _CONTAINERS:
        return holder.values() if isinstance(holder, dict) else holder
    read = _reader(holder)
    return () if read is None else read(holder).values()


class _Snapshot:
    """One object, and what it held."""

    __slots__ = ("before", "path", "read", "value")

    def __init__(self, value: Any, path: str, read: Callable[[Any], dict[str, Any]]):
        self.value, self.path, self.read = value, path, read
        self.before = read(value)

    def written(self) -> Iterator[Written]:
        now = self.read(self.value)
        for name in {**self.before, **now}:
            before = self.before.get(name, MISSING)
            if now.get(name, MISSING) is before:
                continue
            if isinstance(self.value, types.CellType):
                yield Slot.cell(self.value, self.path), before
            elif isinstance(self.value, types.ModuleType):
                yield Slot.item(vars(self.value), name, f"{self.path}.{name}"), before
            else:
                if before is MISSING and not isinstance(self.value, type):
                    before = _of_class(type(self.value)).get(name, MISSING)  # which it hid
                yield Slot.attribute(self.value, name, f"{self.path}.{name}"), before


def _reader(value: Any) -> Callable[[Any], dict[str, Any]] | None:
    """How to read the contents of a user object; None for any other object."""
    if isinstance(value, types.CellType):
        return _of_cell
    if isinstance(value, types.FunctionType):
        return _of_function if is_user_file(value.__code__.co_filename) else None
    if isinstance(value, type):
        return _of_class if is_users_class(value) else None
    if isinstance(value, types.ModuleType):
        return _of_module if is_users_module(value) else None
    if isinstance(value, torch.Tensor):
        return None
    is_users = isinstance(value, _SETTINGS) or is_users_class(type(value))
    return _of_object if is_users else None


def _of_module(module: types.ModuleType) -> dict[str, Any]:
    return {name: v for name, v in vars(module).items() if not name.startswith("__")}


def _of_function(function: types.FunctionType) -> dict[str, Any]:
    names = "__code__", "__defaults__", "__kwdefaults__"
    return {**vars(function), **{name: getattr(function, name) for name in names}}


def _of_cell(cell: types.CellType) -> dict[str, Any]:
    try:
        return {"cell_contents": cell.cell_contents}
    except ValueError:  # empty
        return {}


def _of_class(cls: type) -> dict[str, Any]:
    own = vars(cls)
    return {n: own[n] for n in class_names(cls) if not isinstance(own[n], _DESCRIPTORS)}


def _of_object(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", ()))
    if isinstance(value, torch.nn.Module):  # its tables have guards and effects of their own
        found = {name: v for name, v in found.items() if name not in OF_EVERY_MODULE}
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ()) if is_users_class(cls) else ()
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor = vars(cls).get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    found[name] = descriptor.__get__(value)
                except AttributeError:  # empty
                    continue
    return found
