"""Snapshots of the objects that code can reach, taken before the code changes them.

Most writes are visible in the bytecode: `self.n += 1` names its target. Others do not name the object whose attribute
they set: `make().n = 1`, `for c in counters: c.n += 1`. So the attributes of each user object are recorded when the
code first reaches it, and compared after the code has run.
"""

from __future__ import annotations

import argparse
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, TypeAlias, TypeGuard

import torch

from ...programs.site import is_user_file
from .followed import MODULE_ATTRIBUTES, is_user_module
from .slots import Slot
from .tokens import MISSING, class_names, is_user_class

_DESCRIPTORS = (
    staticmethod,
    classmethod,
    property,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_SETTINGS = (types.SimpleNamespace, argparse.Namespace)
_MAX_OBJECTS = 4096  # objects and containers of one trace
_MAX_LENGTH = 256  # of a container whose elements are followed

# A container that code can change.
Container: TypeAlias = list[object] | dict[object, object] | set[object] | deque[object]
Attributes: TypeAlias = dict[str, object]


class _Reached(NamedTuple):
    """A value that code can reach: its path, and the object or container that holds it (None for a root)."""

    value: object
    path: str
    holder: object


class SlotChange(NamedTuple):
    """A slot whose value changed, and its previous value."""

    slot: Slot
    before: object


class ContainerChange(NamedTuple):
    """A container that may have changed: its path, itself, a copy of its previous contents."""

    path: str
    container: Container
    before: Container


class _ContainerSnapshot(NamedTuple):
    path: str
    container: Container | tuple[object, ...]
    before: Container | tuple[object, ...]
    holder: object


def _is_container(value: object) -> TypeGuard[Container | tuple[object, ...]]:
    """Whether the elements of a value are followed: containers of exactly these types."""
    return type(value) in (list, dict, set, deque, OrderedDict, defaultdict, tuple)


class Snapshots:
    """The user objects and containers that code can reach, with their contents when first reached."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}
        self._objects: list[_ObjectSnapshot] = []
        self._containers: dict[int, _ContainerSnapshot] = {}

    def take(self, value: object, path: str, is_created: Callable[[object], bool]) -> None:
        """Record an object, and what can be reached from it, without what the code created.

        Created objects may hold tensors of the trace, which would seem to be stored outside it.
        """
        pending = [_Reached(value, path, None)]
        while pending and len(self._seen) + len(self._containers) < _MAX_OBJECTS:
            value, path, holder = pending.pop()
            if _is_container(value):
                # A root has a name, by which its guards and effects find it.
                if holder is not None:
                    pending += self._take_container(value, path, holder)
            elif isinstance(value, types.ModuleType) and holder is not None:
                continue  # it has many names: only a module that the code itself names is recorded
            elif id(value) not in self._seen and not is_created(value):
                self._seen[id(value)] = value
                pending += self._take_object(value, path)

    def _take_object(self, value: object, path: str) -> list[_Reached]:
        """Record the contents of an object; return what it leads to."""
        if isinstance(value, types.MethodType):
            return [_Reached(value.__self__, path, value)]
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return [_Reached(part, path, value) for part in parts]
        reached: list[_Reached] = []
        if isinstance(value, torch.nn.Module):
            for name, child in value._modules.items():
                reached.append(_Reached(child, f"{path}.{name}", value))
        read = _reader(value)
        if read is None:
            return reached
        snapshot = _ObjectSnapshot(value, path, read)
        self._objects.append(snapshot)
        if isinstance(value, types.ModuleType):
            return []
        for name, v in snapshot.before.items():
            reached.append(_Reached(v, f"{path}.{name}", value))
        if isinstance(value, types.FunctionType):
            cells = zip(value.__closure__ or (), value.__code__.co_freevars, strict=True)
            reached += [_Reached(cell, name, value) for cell, name in cells]
        elif not isinstance(value, types.CellType | type):
            reached.append(_Reached(type(value), type(value).__name__, value))
        return reached

    def _take_container(
        self, value: Container | tuple[object, ...], path: str, holder: object
    ) -> list[_Reached]:
        if id(value) in self._containers or len(value) > _MAX_LENGTH:
            return []
        copy = value if isinstance(value, tuple) else value.copy()
        self._containers[id(value)] = _ContainerSnapshot(path, value, copy, holder)
        elements = value.values() if isinstance(value, dict) else value
        return [_Reached(element, path, value) for element in elements]

    def before(self, container: object) -> Container | None:
        """The previous contents of a container, or None if it was not recorded."""
        known = self._containers.get(id(container))
        return None if known is None or isinstance(known.before, tuple) else known.before

    def changed_slots(self) -> Iterator[SlotChange]:
        """The slots that hold a different object now."""
        for snapshot in self._objects:
            yield from snapshot.changed_slots()

    def containers(self) -> Iterator[ContainerChange]:
        """The containers that can have changed and are still in the object or container that held them."""
        for path, container, before, holder in self._containers.values():
            if isinstance(container, tuple) or isinstance(before, tuple):
                continue
            if any(part is container for part in _parts(holder)):
                yield ContainerChange(path, container, before)


def _parts(holder: object) -> Iterable[object]:
    """The current contents of an object or a container."""
    if isinstance(holder, functools.partial):
        return holder.args, holder.keywords
    if _is_container(holder):
        return holder.values() if isinstance(holder, dict) else holder
    read = _reader(holder)
    return () if read is None else read(holder).values()


class _ObjectSnapshot:
    """One object, and its attributes when it was first reached."""

    __slots__ = ("before", "path", "read", "value")

    def __init__(self, value: object, path: str, read: Callable[[object], Attributes]):
        self.value, self.path, self.read = value, path, read
        self.before = read(value)

    def changed_slots(self) -> Iterator[SlotChange]:
        value, now = self.value, self.read(self.value)
        for name in {**self.before, **now}:
            before = self.before.get(name, MISSING)
            if now.get(name, MISSING) is before:
                continue
            if isinstance(value, types.CellType):
                yield SlotChange(Slot.variable(value, self.path), before)
            elif isinstance(value, types.ModuleType):
                yield SlotChange(Slot.item(vars(value), name, f"{self.path}.{name}"), before)
            else:
                if before is MISSING and not isinstance(value, type):
                    # The new attribute hides the one of the class.
                    before = _class_attributes(type(value)).get(name, MISSING)
                yield SlotChange(Slot.attribute(value, name, f"{self.path}.{name}"), before)


def _reader(value: object) -> Callable[..., Attributes] | None:
    """The function that reads the attributes of a user object; None for any other object."""
    if isinstance(value, types.CellType):
        return _variable
    if isinstance(value, types.FunctionType):
        return _function_attributes if is_user_file(value.__code__.co_filename) else None
    if isinstance(value, type):
        return _class_attributes if is_user_class(value) else None
    if isinstance(value, types.ModuleType):
        return _module_attributes if is_user_module(value) else None
    if isinstance(value, torch.Tensor):
        return None
    is_users = isinstance(value, _SETTINGS) or is_user_class(type(value))
    return _object_attributes if is_users else None


def _module_attributes(module: types.ModuleType) -> Attributes:
    return {name: v for name, v in vars(module).items() if not name.startswith("__")}


def _function_attributes(function: types.FunctionType) -> Attributes:
    names = "__code__", "__defaults__", "__kwdefaults__"
    return {**vars(function), **{name: getattr(function, name) for name in names}}


def _variable(cell: types.CellType) -> Attributes:
    try:
        return {"cell_contents": cell.cell_contents}
    except ValueError:  # empty
        return {}


def _class_attributes(cls: type) -> Attributes:
    attributes = vars(cls)
    return {
        name: attributes[name]
        for name in class_names(cls)
        if not isinstance(attributes[name], _DESCRIPTORS)
    }


def _object_attributes(value: object) -> Attributes:
    attributes = dict(getattr(value, "__dict__", ()))
    if isinstance(value, torch.nn.Module):  # its tables have guards and effects of their own
        attributes = {name: v for name, v in attributes.items() if name not in MODULE_ATTRIBUTES}
    for cls in type(value).__mro__:
        slots: str | Collection[str] = vars(cls).get("__slots__", ()) if is_user_class(cls) else ()
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor = vars(cls).get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    attributes[name] = descriptor.__get__(value)
                except AttributeError:  # empty
                    continue
    return attributes
