"""What a program depends on when its code uses a value as a whole.

A chain of reads ends at a value that the code computes with or passes to C. What happens there is not visible, so the
contents of the value count as read, depending on its kind:

    a tensor, an array                    its layout, or its contents
    a container                           its elements, and their contents
    a function                            nothing yet: its reads are recorded when it runs
    an object, a torch module             those attributes whose names are mentioned in followed code

The set of mentioned names is complete only when all the code has run: attributes whose names are not yet mentioned wait
until then. Code that computes names (`getattr`, `vars`) is *dynamic*: it may read all attributes, and those named by
its strings.
"""

from __future__ import annotations

import abc
import contextvars
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch

from ...programs.site import is_stdlib_file, is_user_file
from . import outside
from .closures import Closures
from .fetch import Fetch, contents_of, element, reader, ref, strong, variable
from .followed import OF_EVERY_MODULE, is_users_module
from .guard import ATTRIBUTES
from .notes import Notes, said
from .steps import Steps
from .tokens import CONTAINERS, MISSING, class_attributes, class_names, is_plain, is_users_class

Tensor = torch.Tensor

_DEEPEST = 64
_AROUND = 8  # levels of what stands on a class, a function, a Python module
_BUILTIN_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CACHES = type(functools.lru_cache(len))
_LARGEST = 1 << 12


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
        closures: notified of each function that may run.
    """

    def __init__(self, notes: Notes, closures: Closures):
        super().__init__(notes)
        self._closures = closures
        self._waiting: list[_Later] = []
        self._caches: list[tuple[str, Any]] = []  # functions under `lru_cache`

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
        if is_plain(value):
            return
        if isinstance(value, types.FunctionType):  # what it reads is seen when it runs
            if notes.is_first((id(value), "function")):
                self.may_run(value)
                self._function(path, value, fetch)
                self._later(path, value, vars(value), _AROUND)
        elif isinstance(value, types.ModuleType):
            self._python_module(path, value, dynamic)
        elif isinstance(value, Tensor):
            notes.tensor(path, value)
            self.attributes_later(path, value)
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
            self.expect(f"{path}.get()", value.get(MISSING), value.get, dynamic, depth - 1)
        elif isinstance(value, _BUILTIN_METHODS):
            if isinstance(value, types.BuiltinFunctionType) and value in outside.ASKED:
                notes.check(value, outside.asked_again(path, value))
            elif isinstance(value.__self__, CONTAINERS):
                self._bound_builtin(path, value, depth)
        elif isinstance(value, _VIEWS):
            mapping = gc.get_referents(value)[0]
            self._container(path, mapping, strong(mapping), dynamic, depth)
        elif isinstance(value, _CACHES):
            self._cache(path, value)
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
            self.class_later(path, value)
            if dynamic and is_users_class(value):
                for name in [*(name for name, _ in class_attributes(value)), *notes.strings]:
                    self.of_class(value, name, f"{path}.{name}", fetch)
        elif depth and _has_attributes(value) and notes.is_deeper((id(value), dynamic), depth):
            self._object(path, value, fetch, dynamic, depth)

    def _python_module(self, path: str, module: types.ModuleType, dynamic: bool) -> None:
        """A Python module that was reached by a variable: its globals, where some followed code mentions them."""
        own, strings = vars(module), self.notes.strings
        self.notes.remember(module, path)
        if is_users_module(module) and self.notes.is_first((id(module), "globals")):
            self._later(path, module, own, _AROUND)
        if dynamic:
            for name in [n for n in own if any(part in n for part in strings)]:
                self.item(own, name, f"{path}.{name}", strong(own))

    def _bound_builtin(self, path: str, method: Any, depth: int) -> None:
        """A method of a container, kept under a name: `push = log.append`."""
        owner = method.__self__
        if method.__name__ in ("append", "appendleft", "add"):
            self.notes.effects.contain(path, owner, strong(owner), self.notes.line)
        else:
            self.expect(path, owner, strong(owner), False, depth)

    def _cache(self, path: str, cache: Any) -> None:
        """A function under `functools.lru_cache`: its cached results, and whether it has dropped some since."""
        if self.notes.is_first((id(cache), "cache")):
            self._caches.append((path, cache))
            self._results_of(path, cache)

    def _results_of(self, path: str, cache: Any) -> None:
        for part in gc.get_referents(cache):
            if type(part) is dict and part is not vars(cache):  # of one without a limit
                found = list(part.values())
            else:
                found = [part]
            for value in found:
                if not isinstance(value, type | tuple | dict | types.FunctionType):
                    self.expect(f"{path}()", value, ref(value), False, 4)
        self.notes.checks[id(cache)] = outside.kept_results(path, cache)

    def _later(self, path: str, owner: Any, names: Iterable[str], depth: int) -> None:
        """Attributes are read, where some followed code mentions them."""
        self.notes.remember(owner, path)
        self._waiting += [_Later(path, owner, name, ref(owner), depth) for name in names]

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
        # One that only its class has may be given to the object itself later.
        of_class = [
            n for cls in filter(is_users_class, type(value).__mro__) for n in class_names(cls)
        ]
        if dynamic:
            names += [n for n in of_class if not n.startswith("__")]
        self._later(path, value, dict.fromkeys(n for n in of_class if n not in names), depth)
        children = value._modules if isinstance(value, torch.nn.Module) else ()
        for name in dict.fromkeys(names):
            if whole or name in notes.names or name in children:
                self._deep(path, value, name, fetch, dynamic, depth)
            else:
                self._waiting.append(_Later(path, value, name, fetch, depth))
        self.class_later(f"type({path})", type(value))  # by `type(self).k`, which no chain shows

    def class_later(self, path: str, cls: type) -> None:
        """A user class is used: its attributes are read if some followed code mentions them.

        Of an object that the code makes no guard can be asked: it is gone when the code has run.
        """
        if self.notes.is_first((id(cls), "class")):
            for base in filter(is_users_class, cls.__mro__):
                self._later(path, cls, class_names(base), _AROUND)
            if isinstance(cls, abc.ABCMeta):  # what counts as its instance
                self.notes.checks["abc"] = outside.asked_again(
                    "abc.get_cache_token", abc.get_cache_token
                )

    def attributes_later(self, path: str, tensor: Tensor) -> None:
        """What the user hung on a tensor is read, where some followed code mentions it."""
        if vars(tensor) and self.notes.is_first((id(tensor), "attributes")):
            self._later(path, tensor, vars(tensor), _AROUND)

    def read_later(self, path: str, owner: Any, name: str) -> None:
        """An attribute is read, if some followed code mentions it."""
        self._later(path, owner, (name,), _AROUND)

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
        notes = self.notes
        notes.direct = False
        for path, cache in self._caches:
            self._results_of(path, cache)
        for cls in (Tensor, torch.nn.Module):  # methods that the user has added
            for name in notes.names & vars(cls).keys():
                method = vars(cls)[name]
                if isinstance(method, types.FunctionType) and is_user_file(
                    method.__code__.co_filename
                ):
                    self.guard(cls, ATTRIBUTES, name, method, f"{cls.__name__}.{name}", ref(cls))
        while self._waiting:
            path, owner, name, fetch, depth = self._waiting.pop()
            if name in notes.names or name in notes.strings:
                self._deep(path, owner, name, fetch, False, depth)

    def _container(self, path: str, value: Any, fetch: Fetch, dynamic: bool, depth: int) -> None:
        notes = self.notes
        if not notes.is_deeper((id(value), path, dynamic), depth):
            return
        elements = notes.contents(path, value, fetch)
        if type(value).__module__ != "builtins" and is_users_class(type(value)):
            notes.meet(value, path)
            self._later(path, value, _attribute_names(value), depth)
        if not depth or len(elements) > _LARGEST:
            if not all(is_plain(part) for _, part in elements):
                notes.warn(f"reads more of `{path}` than is tracked", *notes.line)
            return
        in_set = isinstance(value, set | frozenset)
        for key, part in elements:
            if not is_plain(key):
                self.expect(f"a key of {path}", key, ref(key), dynamic, depth - 1)
            if not is_plain(part):
                found = ref(part) if in_set else element(fetch, key)
                self.expect(f"{path}[{said(key)}]", part, found, dynamic, depth - 1)

    def _partial(self, path: str, value: Any, fetch: Fetch, dynamic: bool, depth: int) -> None:
        self.may_run(value.func)
        self.expect(f"{path}.func", value.func, reader(fetch, ATTRIBUTES, "func"), dynamic, depth)
        for name in ("args", "keywords"):
            found = reader(fetch, ATTRIBUTES, name)
            self._container(f"{path}.{name}", getattr(value, name), found, dynamic, depth)

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
        self.notes.remember(value, value.__name__)

    def _function(self, path: str, function: types.FunctionType, fetch: Fetch) -> None:
        """A function that may be called: its code and its defaults can be exchanged in place."""
        file = function.__code__.co_filename
        if is_user_file(file):
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                value, where = getattr(function, name), f"{path}.{name}"
                self.guard(function, ATTRIBUTES, name, value, where, fetch)
                if isinstance(value, tuple | dict) and not is_plain(value):
                    self._container(where, value, reader(fetch, ATTRIBUTES, name), False, _AROUND)
        elif is_stdlib_file(file):
            # `functools.wraps`, `singledispatch`: made of the user's
            for cell in function.__closure__ or ():
                inner = contents_of(cell)
                self.may_run(inner)
                if isinstance(inner, types.FunctionType) and inner is not function:
                    self._function(path, inner, variable(cell))
                else:
                    self.expect(path, inner, variable(cell), depth=_AROUND)


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
