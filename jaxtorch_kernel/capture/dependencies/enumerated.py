"""What code reads when it enumerates a class or a Python module: `vars(C)`, `dir(c)`, `inspect.getmembers(C)`.

Such code depends on which names there are, so that they are guarded, beside the values.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping

from .fetch import Fetch, ref, strong
from .followed import is_user_module
from .reads import names_read
from .tokens import CONTAINERS, is_user_class, items_of
from .values import Values

# Code that uses one of these names may enumerate a class or a module. With one of the second set it may enumerate the
# class of an object.
_DIR = frozenset({"dir", "getmembers", "getmembers_static"})
_ENUMERATES = _DIR | {"vars", "__dict__"}
_CLASS_OF = _DIR | {"type", "__class__"}


@functools.lru_cache(4096)
def _names_in(code: types.CodeType) -> frozenset[str]:
    """Which of these names are in code, and in its generator expressions and functions."""
    names = names_read(code)
    return (_ENUMERATES | _CLASS_OF).intersection((*names.globals, *names.attributes))


class Enumerated:
    """Notes what is enumerated.

    Args:
        values: notes each value.
    """

    def __init__(self, values: Values):
        self._values = values
        self._notes = values.notes

    def add(self, path: str, value: object, fetch: Fetch, code: types.CodeType) -> None:
        """Note a value that code has read and may enumerate, or the elements of a container."""
        mentioned = _names_in(code)
        if mentioned.isdisjoint(_ENUMERATES):
            return
        if isinstance(value, CONTAINERS):
            parts = [v for _, v in items_of(value)] if isinstance(value, Mapping) else value
            for part in parts:
                if not isinstance(part, CONTAINERS):
                    self.add(f"{path}[...]", part, ref(part), code)
        elif isinstance(value, type):
            self._class(path, value, fetch)
        elif isinstance(value, types.ModuleType):
            self._module(path, value)
        elif not mentioned.isdisjoint(_CLASS_OF) and is_user_class(type(value)):
            self._class(f"type({path})", type(value), ref(type(value)))

    def _class(self, path: str, cls: type, fetch: Fetch) -> None:
        for i, base in enumerate(cls.__mro__):
            if is_user_class(base):
                where = path if base is cls else base.__name__
                self._names(where, base, lambda i=i: fetch().__mro__[i])  # type: ignore[attr-defined,misc]  # a class

    def _module(self, path: str, module: types.ModuleType) -> None:
        excluded = self._notes.excluded.namespace
        is_session = module.__name__ == "__main__" or vars(module) is excluded
        if is_user_module(module) and not is_session:
            self._names(path, module, strong(module))

    def _names(self, path: str, owner: type | types.ModuleType, fetch: Fetch) -> None:
        """Note all names of a class or a module, and their values."""
        if not self._notes.is_first((id(owner), "enumerated")):
            return
        names = tuple(vars(owner))
        self._notes.contents(f"dir({path})", names, lambda: tuple(vars(fetch())))
        for name in names:
            if not name.startswith("__"):
                resolved = self._values.attribute(owner, name, path, fetch)
                if resolved is not None:
                    self._values.use(*resolved)
