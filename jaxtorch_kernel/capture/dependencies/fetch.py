"""How a value that was read is found again.

A guard outlives the frame in which its value was read, so it keeps a *fetch*: a function without arguments that returns
the current value. The fetch of an attribute calls the fetch of its owner, and so on up to a root object. The root is
held by a weak reference where Python allows one, so that a program keeps nothing alive. If something along the path no
longer exists, a fetch returns None or raises one of the exceptions in `GONE`.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch

from ...base import running_function
from .reads import ATTRIBUTE
from .tokens import MISSING

V = TypeVar("V")

_TABLES = ("_parameters", "_buffers", "_modules")

Fetch: TypeAlias = Callable[[], object]
# What a fetch raises if its owner no longer exists or has lost the attribute or item.
GONE = AttributeError, LookupError, TypeError, ValueError


class Resolved(NamedTuple):
    """A value that was read: its path as in source code, the value, and how to find it again."""

    path: str
    value: object
    fetch: Fetch


def strong(value: V) -> Callable[[], V]:
    """A strong reference, for values that live as long as the process."""
    return lambda: value


def ref(value: V) -> Callable[[], V | None]:
    """A weak reference to the value, or a strong one if its type does not support weak references."""
    try:
        return weakref.ref(value)
    except TypeError:
        return strong(value)


def fetched(fetch: Fetch) -> object | None:
    """The current value; None if it no longer exists."""
    try:
        return fetch()
    except (*GONE, ReferenceError):
        return None


# In these readers `fetch` returns Any: what it finds may be of any type, and an operation that this type does not
# support raises one of `GONE`.


def item_of(container: Any, key: Any) -> Any:
    """An item of a container. A `defaultdict` makes none for a key that it lacks, as it would for `container[key]`."""
    if not runs_code(container):
        return container[key]
    if not dict.__contains__(container, key):
        raise KeyError(key)
    return dict.__getitem__(container, key)


def runs_code(container: object) -> bool:
    """Whether a container is a dictionary of a subclass, which may do anything when an item is read, or make one."""
    return isinstance(container, dict) and type(container) not in (dict, OrderedDict)


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """Finds the element of a container under a key."""

    container: Callable[[], Any]
    key: object

    def __call__(self) -> object:
        return item_of(self.container(), self.key)


def element(fetch: Callable[[], Any], key: object) -> Fetch:
    """The element of a container under a key."""
    return Element(fetch, key)


def made(fetch: Fetch) -> Any:
    """The current value, for a store into it: a `defaultdict` makes an item that it lacks, as in the code itself."""
    return made(fetch.container)[fetch.key] if isinstance(fetch, Element) else fetch()


def attribute(fetch: Fetch, name: str) -> Fetch:
    """An attribute; the name may have dots."""
    if name in _TABLES and isinstance(fetch(), torch.nn.Module):
        return ModuleTable(fetch, name)
    read = attrgetter(name)
    return lambda: read(fetch())


def reader(fetch: Fetch, kind: str, key: Any) -> Fetch:
    """An attribute or an item, by the kind of its group (`guard.py`)."""
    return attribute(fetch, key) if kind == ATTRIBUTE else element(fetch, key)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleTable:
    """Finds a table of a torch module: its parameters, buffers or submodules."""

    module: Fetch
    table: str

    def __call__(self) -> dict[str, Any]:
        table: dict[str, Any] = self.module().__dict__[self.table]
        return table


class ClosureFetch:
    """Finds the cell of a closure variable. If the function no longer exists, nothing depends on the variable."""

    __slots__ = ("code", "function", "index")

    def __init__(self, function: types.FunctionType, index: int):
        self.function = weakref.ref(function)
        self.code = function.__code__
        self.index = index

    def __call__(self) -> types.CellType:
        return self.function().__closure__[self.index]  # type: ignore[union-attr,index]  # AttributeError: gone


def class_table(cls: Fetch) -> Fetch:
    """The dictionary of a class itself."""
    return lambda: cls().__dict__


def variable(cell: types.CellType) -> Fetch:
    """The value of a closure variable, from its cell."""
    return lambda: cell.cell_contents


def contents_of(cell: types.CellType) -> object:
    """The current value of a closure variable; MISSING if it is not set yet."""
    return running_function.contents_of(cell, MISSING)
