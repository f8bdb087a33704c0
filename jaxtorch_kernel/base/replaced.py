"""Replacement of torch's attributes, for a time or for good, where torch has no hook."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_INHERITED = object()  # an attribute that a class has only from its base


class Replaced:
    """Attributes that have other values while at least one thread is inside `applied()`.

    All threads share the attributes, and may enter and leave at the same time. So the entries are counted: the first
    one sets the new values, and the last one to leave restores the old ones.

    Example:
        >>> class Switch:
        ...     on = False
        >>> replaced = Replaced((Switch, "on", True))
        >>> with replaced.applied(), replaced.applied():
        ...     Switch.on
        True
        >>> Switch.on
        False
    """

    def __init__(self, *attributes: tuple[Any, str, Any]):
        self._attributes = list(attributes)
        self._before: list[Any] = []
        self._count = 0
        self._lock = threading.Lock()

    def add(self, *attributes: tuple[Any, str, Any]) -> None:
        """Replace these attributes too, from the next `applied()` on."""
        self._attributes += attributes

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the attributes inside the block."""
        with self._lock:
            if not self._count:
                self._before = [vars(o).get(name, _INHERITED) for o, name, _ in self._attributes]
                for owner, name, value in self._attributes:
                    setattr(owner, name, value)
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    for (owner, name, _), value in zip(self._attributes, self._before, strict=True):
                        if value is _INHERITED:
                            delattr(owner, name)
                        else:
                            setattr(owner, name, value)


def replace_methods(cls: type, methods: Mapping[str, Callable[..., object]]) -> None:
    """Replace methods of a class that is written in C, whose attributes Python does not let anyone set.

    CPython reads them from a plain dictionary behind the view that `vars` returns. Other implementations may have no
    such dictionary; the methods then remain unchanged.
    """
    for table in gc.get_referents(vars(cls)):
        if isinstance(table, dict) and table.keys() >= methods.keys():
            table.update(methods)
            _forget_lookups(cls)


_forget_lookups = ctypes.pythonapi.PyType_Modified
_forget_lookups.argtypes, _forget_lookups.restype = [ctypes.py_object], None
