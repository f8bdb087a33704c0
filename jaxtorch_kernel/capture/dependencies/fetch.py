"""How a value that was read is found again.

A guard outlives the frame in which its value was read, so it keeps a *fetch*: a function without arguments that returns
the current value. The fetch of an attribute calls the fetch of its owner, and so on up to a root object. The root is
held by a weak reference where Python allows one, so that a program keeps nothing alive. A fetch raises or returns None
if something along the path no longer exists.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from .guard import ATTRIBUTES
from .tokens import MISSING

_TABLES = ("_parameters", "_buffers", "_modules")

Fetch = Callable[[], Any]
# What reading one value gives: its path as one would write it, the value, and how to find it again.
Found = tuple[str, Any, Fetch]


def strong(value: Any) -> Fetch:
    """A strong reference, for values that live as long as the process."""
    return lambda: value


def ref(value: Any) -> Fetch:
    """A weak reference to the value, or the value itself if it does not support one."""
    try:
        return weakref.ref(value)
    except TypeError:
        return strong(value)


def element(fetch: Fetch, key: Any) -> Fetch:
    """The element of a container under a key."""
    return lambda: fetch()[key]


def reader(fetch: Fetch, kind: str, key: Any) -> Fetch:
    """An attribute or an item, by the kind of its group (`guard.py`); the name of an attribute may have dots."""
    if kind == ATTRIBUTES:
        if key in _TABLES and isinstance(fetch(), torch.nn.Module):
            return ModuleTable(fetch, key)
        read = attrgetter(key)
        return lambda: read(fetch())
    return lambda: fetch()[key]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleTable:
    """Finds a table of a torch module: its parameters, buffers or submodules."""

    module: Fetch
    table: str

    def __call__(self) -> Any:
        return self.module().__dict__[self.table]


def class_table(cls: Fetch) -> Fetch:
    """The dictionary of a class itself."""
    return lambda: cls().__dict__


def variable(cell: Any) -> Fetch:
    """The value of a closure variable, from its cell."""
    return lambda: cell.cell_contents


def contents_of(cell: Any) -> Any:
    """The current value of a closure variable; MISSING if it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING
