"""A value that the code uses as a whole: what of it a program depends on.

A chain of reads ends at a value with which the code computes, or which it hands to C. What happens there is not seen,
so what the value holds counts as read, by its kind:

    a tensor, an array                    its layout, or its contents
    a container                           what it holds, and what that holds
    a function                            nothing yet: what it reads is seen when it runs
    an object, a torch module             those of its attributes whose names some followed code mentions

The names that code mentions are complete only when all of it has run: attributes whose names are unknown so far
wait until then. Code that computes names (`getattr`, `vars`) is *dynamic*: it may read all attributes, and those that
its strings name.
"""

from __future__ import annotations

import contextvars
import functools
import os
import sys
import threading
import types
import weakref
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch

from ...dispatch.site import is_user_file
from . import outside
from .closures import Closures
from .fetch import Fetch, contents_of, element, reader, ref, strong, variable
from .guard import ATTRIBUTES
from .notes import Notes
from .steps import Steps
from .tokens import CONTAINERS, class_attributes, is_plain, is_users_class

Tensor = torch.Tensor

_STDLIB = os.path.dirname(os.__file__) + os.sep
_DEEPEST = 24
_LARGEST = 1 << 12  # elements of a container whose elements are looked into


OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}


class _Later(NamedTuple):
    """An attribute that is read if some followed code mentions its name, which is known at the end."""

    path: str
    owner: Any
    name: str
    fetch: Fetch
    depth: int


class Values(Steps):
    """Looks into values.

    Args:
        notes: of the trace.
        closures: are told of each function that may run.
    """

    def __init__(self, notes: Notes, closures: Closures):
        super().__init__(notes)
        self._closures = closures
        self._waiting: list[_Later] = []

    def found(self, path: str, value: Any, fetch: Fetch) -> None:
        """A step has found a value: a function may run, a tensor is an input."""
        self.may_run(value)
        if isinstance(value, Tensor):
            self.notes.tensor(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(path, value, fetch)

    def expect(
        self,
        path: str,
        value: Any,
        fetch: Fetch,
        dynamic: bool = False,
        depth: int = _DEEPEST,
    ) -> None:
        """A value was read, and may be used in any way."""
        notes = self.notes
        if is_plain(value) or isinstance(value, types.FunctionType | types.ModuleType):
            if dynamic and isinstance(value, types.ModuleType):
                for name in notes.strings:
                    self.item(vars(value), name, f"{path}.{name}", strong(vars(value)))
            return  # what a function reads is seen when it runs
        if isinstance(value, Tensor):
            notes.tensor(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            notes.optimizer(value, path)
        elif isinstance(value, CONTAINERS):
            self._container(path, value, fetch, dynamic, depth)
        elif outside.is_iterator(value):
            return
        elif names := outside.names_asked(value):
            notes.names.update(names)
        elif isinstance(value, weakref.ref):
            target = value()
            if target is not None:
                self.expect(f"{path}()", target, value, dynamic, depth)
        elif isinstance(value, contextvars.ContextVar):
            notes.check(value, outside.context_variable(path, value))
        elif isinstance(value, types.BuiltinFunctionType):
            if value in outside.ASKED:
                notes.check(value, outside.asked_again(path, value))
        elif type(value).__module__ in outside.SHARED:
            if isinstance(value, threading.Event):
                notes.check(value, outside.asked_again(f"{path}.is_set", value.is_set))
        elif isinstance(value, functools.partial):
            self._partial(path, value, fetch, dynamic, depth)
        elif isinstance(value, types.MethodType):
            self.expect(f"{path}.__self__", value.__self__, ref(value.__self__), dynamic, depth)
        elif outside.is_array(value):
            notes.check(value, outside.unchanged_array(path, value))
        elif isinstance(value, type):
            if dynamic and is_users_class(value):
                for name in [*(name for name, _ in class_attributes(value)), *notes.strings]:
                    self.of_class(value, name, f"{path}.{name}", fetch)
        elif depth and _has_attributes(value) and notes.is_first((id(value), "deep", dynamic)):
            self._object(path, value, fetch, dynamic, depth)

    def _object(self, path: str, value: Any, fetch: Fetch, dynamic: bool, depth: int) -> None:
        """Any other object: its attributes."""
        notes = self.notes
        notes.meet(value, path)
        whole = dynamic or _is_stdlib(type(value))
        own = getattr(value, "__dict__", None)
        # A torch module may keep a tensor of the code's (pruning does): as an attribute, which each run binds.
        if dynamic and isinstance(own, dict) and not isinstance(value, torch.nn.Module):
            notes.contents(f"{path}.__dict__", own, reader(ref(value), ATTRIBUTES, "__dict__"))
        names = [*_attribute_names(value), *(notes.strings if dynamic else ())]
        for name in dict.fromkeys(names):
            if whole or name in notes.names:
                self._deep(path, value, name, fetch, dynamic, depth)
            else:
                self._waiting.append(_Later(path, value, name, fetch, depth))
        if is_users_class(cls := type(value)):  # by `type(self).k`, which no chain shows
            for name, found in class_attributes(cls):
                if is_plain(found):
                    later = _Later(f"type({path})", cls, name, ref(cls), depth)
                    self._waiting.append(later)

    def read_later(self, path: str, owner: Any, name: str) -> None:
        """An attribute is read, if some followed code mentions it."""
        self._waiting.append(_Later(path, owner, name, ref(owner), 2))

    def _deep(
        self, path: str, owner: Any, name: str, fetch: Fetch, dynamic: bool, depth: int
    ) -> None:
        known = self.attribute(owner, name, path, fetch)
        if known is not None:
            # Code that computes names goes on with them where it names the attribute itself, or copies all of it.
            goes_on = name in self.notes.strings or is_dataclass(known[1])
            self.expect(*known, dynamic and goes_on, depth - 1)

    def look_into_waiting(self) -> None:
        """All names that the code mentions are known now."""
        while self._waiting:
            path, owner, name, fetch, depth = self._waiting.pop()
            if name in self.notes.names:
                self._deep(path, owner, name, fetch, False, depth)

    def _container(self, path: str, value: Any, fetch: Fetch, dynamic: bool, depth: int) -> None:
        elements = self.notes.contents(path, value, fetch)
        if depth and len(elements) <= _LARGEST and not isinstance(value, set | frozenset):
            for key, part in elements:
                if not is_plain(part):
                    where = f"{path}[{key!r}]"
                    self.expect(where, part, element(fetch, key), dynamic, depth - 1)

    def _partial(self, path: str, value: Any, fetch: Fetch, dynamic: bool, depth: int) -> None:
        self.may_run(value.func)
        keywords = reader(fetch, ATTRIBUTES, "keywords")
        self._container(f"{path}.keywords", value.keywords, keywords, False, 1)
        for i, part in enumerate((value.func, *value.args, *value.keywords.values())):
            self.expect(f"{path}[{i}]", part, strong(part), dynamic, depth - 1)

    # -- functions ------------------------------------------------------------------------------------------------

    def may_run(self, value: Any) -> None:
        """A function that may run: it says which variables its closure has."""
        value = value.__func__ if isinstance(value, types.MethodType) else value
        if not isinstance(value, types.FunctionType):
            return
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            if not is_plain(default) and not self.notes.is_met(default):
                self.notes.meet(default, "")
                self.expect(f"{value.__name__}.__defaults__", default, ref(default))
        self._closures.add(value)

    def _function(self, path: str, function: types.FunctionType, fetch: Fetch) -> None:
        """A function that may be called: its code and its defaults can be exchanged in place."""
        file = function.__code__.co_filename
        if is_user_file(file):
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                value, where = getattr(function, name), f"{path}.{name}"
                self.guard(function, ATTRIBUTES, name, value, where, fetch)
                if isinstance(value, tuple | dict) and not is_plain(value):
                    self._container(where, value, reader(fetch, ATTRIBUTES, name), False, 2)
        elif file.startswith(_STDLIB) and "site-packages" not in file:
            # `functools.wraps`, `singledispatch`: made of the user's
            for cell in function.__closure__ or ():
                inner = contents_of(cell)
                self.may_run(inner)
                if isinstance(inner, types.FunctionType) and inner is not function:
                    self._function(path, inner, variable(cell))
                else:
                    self.expect(path, inner, variable(cell), depth=2)


def _is_stdlib(cls: type) -> bool:
    return (
        cls.__module__.partition(".")[0] in sys.stdlib_module_names and cls.__module__ != "__main__"
    )


def _has_attributes(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return True
    module = type(value).__module__.partition(".")[0]
    if module in ("torch", "jax", "jaxlib", "numpy", "jaxtorch", "builtins"):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _attribute_names(value: Any) -> list[str]:
    names = list(getattr(value, "__dict__", ()))
    if isinstance(value, torch.nn.Module):
        names = [n for n in names if n not in OF_EVERY_MODULE] + list(value._modules)
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [n for n in dict.fromkeys(names) if n not in ("__dict__", "__weakref__")]
