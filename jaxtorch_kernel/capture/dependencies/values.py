"""What a program depends on when its code uses a value as a whole.

A chain of reads ends at a value that the code computes with or passes to C. What happens there is not visible, so the
contents of the value count as read, depending on its kind:

    a tensor, an array                    its layout, or its contents
    a container                           its elements, and their contents
    a function                            nothing yet: its reads are recorded when it runs
    an object, a torch module             those attributes whose names are mentioned in followed code

The set of mentioned names is complete only when all the code has run. Attributes whose names are not yet mentioned are
*deferred* until then. Code that computes names (`getattr`, `vars`) is *dynamic*: it may read all attributes, and those
named by its strings.
"""

from __future__ import annotations

import abc
import contextvars
import functools
import gc
import inspect
import sys
import types
import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from ...programs.site import is_stdlib_file, is_user_file
from . import outside
from .fetch import Fetch, contents_of, element, reader, ref, strong, variable
from .followed import MODULE_ATTRIBUTES, is_user_module
from .inherited import inherited_reads
from .notes import Notes, key_text
from .reads import ATTRIBUTE
from .steps import Steps
from .tokens import CONTAINERS, class_attributes, class_names, is_plain, is_user_class

Tensor = torch.Tensor
Cache: TypeAlias = "functools._lru_cache_wrapper[Any]"

_MAX_DEPTH = 64  # levels of a value that are inspected
_SHALLOW = 8  # levels of the attributes of a class, a function, a Python module
_CACHED_RESULT = 4  # levels of a result of `functools.lru_cache`
_BUILTIN_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_MAX_ELEMENTS = 1 << 12  # of a container whose elements are inspected


class _Deferred(NamedTuple):
    """An attribute that is read if some followed code mentions its name, which is known at the end."""

    path: str
    owner: object
    name: str
    fetch: Fetch
    depth: int


class Values(Steps):
    """Inspects values that are used as a whole.

    Args:
        notes: of the trace.
    """

    def __init__(self, notes: Notes):
        super().__init__(notes)
        self._deferred: list[_Deferred] = []
        self._caches: list[tuple[str, Cache]] = []
        # Python modules from which the code reads names that it computes.
        self._by_name: list[tuple[str, types.ModuleType]] = []

    def inspect(self, path: str, value: object, fetch: Fetch) -> None:
        self.add_function(value)
        if isinstance(value, Tensor):
            self.notes.tensor(path, value)
        elif isinstance(value, types.FunctionType):
            self._guard_function(path, value, fetch)

    def use(
        self,
        path: str,
        value: object,
        fetch: Fetch,
        dynamic: bool = False,
        depth: int = _MAX_DEPTH,
    ) -> None:
        """Note a value that was read, and may be used in any way."""
        notes = self.notes
        if type(value) in weakref.ProxyTypes:
            value = outside.target_of(value)
            fetch = ref(value)
        if is_plain(value):
            return
        if isinstance(value, types.FunctionType):  # what it reads is recorded when it runs
            if notes.is_first((id(value), "function")):
                self.add_function(value)
                self._guard_function(path, value, fetch)
                self._defer(path, value, vars(value), _SHALLOW)
        elif isinstance(value, types.ModuleType):
            self._use_python_module(path, value, dynamic)
        elif isinstance(value, Tensor):
            notes.tensor(path, value)
            self.defer_tensor_attributes(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            notes.optimizer(value, path)
        elif value is sys.modules:
            notes.check(value, outside.imported_check(path, notes.identifiers))
        elif isinstance(value, CONTAINERS):
            self._use_container(path, value, fetch, dynamic, depth)
        elif outside.is_iterator(value):
            return
        elif names := outside.names_of_getter(value):
            notes.names.update(names)
        elif isinstance(value, weakref.ref):
            target = value()
            if target is not None:
                self.use(f"{path}()", target, value, dynamic, depth)
        elif isinstance(value, contextvars.ContextVar):
            # What the code itself has set in the meantime is not a dependency.
            before = notes.context.run(outside.value_of, value)
            notes.check(value, outside.context_variable_check(path, value, before))
            self.use(f"{path}.get()", before, value.get, dynamic, depth - 1)
        elif isinstance(value, _BUILTIN_METHODS):
            self._use_builtin(path, value, depth)
        elif isinstance(value, _VIEWS):
            mapping = gc.get_referents(value)[0]
            self._use_container(path, mapping, strong(mapping), dynamic, depth)
        elif isinstance(value, functools._lru_cache_wrapper):
            if notes.is_first((id(value), "cache")):
                self._caches.append((path, value))
                self._use_cached_results(path, value)
        elif type(value).__module__ in outside.OPAQUE_MODULES:
            if (state := outside.state_of(value)) is not None:
                notes.check(value, outside.same_result_check(f"{path}.{state[0]}", state[1]))
        elif isinstance(value, functools.partial):
            self._use_partial(path, value, fetch, dynamic, depth)
        elif isinstance(value, types.MethodType):
            self.use(f"{path}.__self__", value.__self__, ref(value.__self__), dynamic, depth)
        elif outside.is_array(value):
            notes.check(value, outside.array_check(path, value))
            self._use_objects_of_array(path, value, dynamic, depth)
        elif isinstance(value, type):
            self.defer_class(path, value)
            if dynamic and is_user_class(value):
                for name in [*(name for name, _ in class_attributes(value)), *notes.strings]:
                    self.class_attribute(value, name, f"{path}.{name}", fetch)
        elif depth and _has_attributes(value) and notes.is_deeper((id(value), dynamic), depth):
            self._use_object(path, value, fetch, dynamic, depth)

    def _use_python_module(self, path: str, module: types.ModuleType, dynamic: bool) -> None:
        """A Python module that was reached by a variable: its globals that followed code mentions."""
        variables, strings = vars(module), self.notes.strings
        self.notes.objects.take_snapshot(module, path)
        if is_user_module(module) and self.notes.is_first((id(module), "globals")):
            self._defer(path, module, variables, _SHALLOW)
        if dynamic:
            self._by_name.append((path, module))
            names = [n for n in variables if any(part in n for part in strings)]
            if is_user_module(module):  # `getattr(config, "scale", 1)`: it may get the name later
                names += sorted(strings - variables.keys())
            for name in names:
                self.item(variables, name, f"{path}.{name}", strong(variables))

    def _use_builtin(
        self, path: str, method: types.BuiltinFunctionType | types.MethodWrapperType, depth: int
    ) -> None:
        """A builtin function, or a method of a container that is stored under a name: `push = log.append`."""
        owner: object = method.__self__
        if isinstance(method, types.BuiltinFunctionType) and method in outside.RECHECKED:
            self.notes.check(method, outside.same_result_check(path, method))
        elif not isinstance(owner, CONTAINERS):
            return
        elif method.__name__ in ("append", "appendleft", "add"):
            self.notes.effects.add_container(path, owner, strong(owner), self.notes.line)
        else:
            self.use(path, owner, strong(owner), False, depth)

    def _use_cached_results(self, path: str, cache: Cache) -> None:
        """The cached results of a function under `functools.lru_cache`, and that it has not dropped any since."""
        for part in gc.get_referents(cache):
            if type(part) is dict and part is not vars(cache):  # of a cache without a limit
                results = list(part.values())
            else:
                results = [part]
            for value in results:
                if not isinstance(value, type | tuple | dict | types.FunctionType):
                    self.use(f"{path}()", value, ref(value), False, _CACHED_RESULT)
        self.notes.checks[id(cache)] = outside.cache_check(path, cache)

    def _use_object(
        self, path: str, value: object, fetch: Fetch, dynamic: bool, depth: int
    ) -> None:
        """Any other object: its attributes."""
        notes = self.notes
        notes.objects.add_preexisting(value, path)
        inherited = inherited_reads(type(value))
        whole = dynamic or inherited.dynamic or _is_stdlib(type(value))
        attributes = getattr(value, "__dict__", None)
        # A torch module may hold a tensor that the code created (pruning does): each run binds that attribute.
        if dynamic and isinstance(attributes, dict) and not isinstance(value, torch.nn.Module):
            table = reader(ref(value), ATTRIBUTE, "__dict__")
            notes.contents(f"{path}.__dict__", attributes, table)
            notes.effects.owners[id(attributes)] = id(value)
        names = [*_attribute_names(value), *(notes.strings if dynamic else ())]
        # The object itself may get an attribute later that only its class has now.
        user_classes = filter(is_user_class, type(value).__mro__)
        of_class = [name for cls in user_classes for name in class_names(cls)]
        if dynamic:
            names += [n for n in of_class if not n.startswith("__")]
        names += inherited.names.intersection(of_class)
        self._defer(path, value, dict.fromkeys(n for n in of_class if n not in names), depth)
        children = value._modules if isinstance(value, torch.nn.Module) else ()
        for name in dict.fromkeys(names):
            if whole or name in notes.names or name in inherited.names or name in children:
                self._use_attribute(path, value, name, fetch, dynamic, depth)
            else:
                self._deferred.append(_Deferred(path, value, name, fetch, depth))
        self.defer_class(f"type({path})", type(value))  # no chain shows `type(self).k`

    def _use_attribute(
        self, path: str, owner: object, name: str, fetch: Fetch, dynamic: bool, depth: int
    ) -> None:
        resolved = self.attribute(owner, name, path, fetch)
        if resolved is not None:
            # Dynamic code reads the attributes of an attribute only if it names it, or copies all of the object.
            continues = name in self.notes.strings or is_dataclass(resolved.value)
            self.use(*resolved, dynamic and continues, depth - 1)

    def _use_container(
        self, path: str, value: object, fetch: Fetch, dynamic: bool, depth: int
    ) -> None:
        notes = self.notes
        if not notes.is_deeper((id(value), path, dynamic), depth):
            return
        elements = notes.contents(path, value, fetch)
        if type(value).__module__ != "builtins" and is_user_class(type(value)):
            notes.objects.add_preexisting(value, path)
            self._defer(path, value, _attribute_names(value), depth)
        if not depth or len(elements) > _MAX_ELEMENTS:
            if not all(is_plain(part) for _, part in elements):
                notes.warn(f"reads more of `{path}` than is tracked", *notes.line)
            return
        if isinstance(value, defaultdict):
            factory = self.guard(
                value,
                ATTRIBUTE,
                "default_factory",
                value.default_factory,
                f"{path}.default_factory",
                fetch,
            )
            if factory is not None:
                self.use(*factory, dynamic, depth - 1)
        in_set = isinstance(value, set | frozenset)
        for key, part in elements:
            if not is_plain(key):
                self.use(f"a key of {path}", key, ref(key), dynamic, depth - 1)
            if not is_plain(part):
                part_fetch = ref(part) if in_set else element(fetch, key)
                self.use(f"{path}[{key_text(key)}]", part, part_fetch, dynamic, depth - 1)

    def _use_objects_of_array(self, path: str, array: object, dynamic: bool, depth: int) -> None:
        """The elements of an array of objects, whose own contents its check does not compare."""
        objects = outside.objects_of_array(array)
        if all(map(is_plain, objects)):
            return
        if not self.notes.is_deeper((id(array), "objects", dynamic), depth):
            return
        if not depth or len(objects) > _MAX_ELEMENTS:
            self.notes.warn(f"reads more of `{path}` than is tracked", *self.notes.line)
            return
        for i, part in enumerate(objects):
            self.use(f"{path}.flat[{i}]", part, ref(part), dynamic, depth - 1)

    def _use_partial(
        self,
        path: str,
        value: functools.partial[object],
        fetch: Fetch,
        dynamic: bool,
        depth: int,
    ) -> None:
        self.add_function(value.func)
        self.use(f"{path}.func", value.func, reader(fetch, ATTRIBUTE, "func"), dynamic, depth)
        for name in ("args", "keywords"):
            part_fetch = reader(fetch, ATTRIBUTE, name)
            self._use_container(f"{path}.{name}", getattr(value, name), part_fetch, dynamic, depth)

    # -- deferred attributes --------------------------------------------------------------------------------------

    def _defer(self, path: str, owner: object, names: Iterable[str], depth: int) -> None:
        """Defer attributes: they are read if some followed code mentions them."""
        self.notes.objects.take_snapshot(owner, path)
        self._deferred += [_Deferred(path, owner, name, ref(owner), depth) for name in names]

    def defer_class(self, path: str, cls: type) -> None:
        """Defer the attributes of a user class.

        An object that the code creates has no guards of its own, because it does not exist before a run.
        """
        if self.notes.is_first((id(cls), "class")):
            for base in filter(is_user_class, (*cls.__mro__, *inspect.getmro(type(cls)))):
                self._defer(path, cls, class_names(base), _SHALLOW)
            if isinstance(cls, abc.ABCMeta):  # the token changes if a class is registered with it
                self.notes.checks["abc"] = outside.same_result_check(
                    "abc.get_cache_token", abc.get_cache_token
                )

    def defer_tensor_attributes(self, path: str, tensor: Tensor) -> None:
        """Defer the attributes that the user added to a tensor."""
        if vars(tensor) and self.notes.is_first((id(tensor), "attributes")):
            self._defer(path, tensor, vars(tensor), _SHALLOW)

    def defer_attribute(self, path: str, owner: object, name: str) -> None:
        """Defer one attribute."""
        self._defer(path, owner, (name,), _SHALLOW)

    def read_deferred(self) -> None:
        """Read the deferred attributes that followed code mentions: all names are known now."""
        notes = self.notes
        notes.direct = False
        for path, cache in self._caches:
            self._use_cached_results(path, cache)
        for cls in (Tensor, torch.nn.Module):  # methods that the user has added
            for name in notes.names & vars(cls).keys():
                method = vars(cls)[name]
                if isinstance(method, types.FunctionType) and is_user_file(
                    method.__code__.co_filename
                ):
                    self.guard(cls, ATTRIBUTE, name, method, f"{cls.__name__}.{name}", ref(cls))
        known = -1
        while self._deferred or len(notes.texts) > known:
            known = len(notes.texts)
            while self._deferred:
                path, owner, name, fetch, depth = self._deferred.pop()
                if name in notes.names or name in notes.strings:
                    self._use_attribute(path, owner, name, fetch, False, depth)
            for path, module in self._by_name:
                self._use_named(path, module)

    def _use_named(self, path: str, module: types.ModuleType) -> None:
        """The globals of a Python module whose names the code has read: `getattr(config, args.name)`."""
        names = (
            self.notes.texts if is_user_module(module) else self.notes.texts & vars(module).keys()
        )
        for name in sorted(names):
            self._use_attribute(path, module, name, strong(module), False, _SHALLOW)

    # -- functions ------------------------------------------------------------------------------------------------

    def add_function(self, value: object) -> None:
        """If a value is a function, note that it may run: its defaults may be read."""
        value = value.__func__ if isinstance(value, types.MethodType) else value
        if not isinstance(value, types.FunctionType):
            return
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            if not is_plain(default) and not self.notes.objects.is_preexisting(default):
                self.notes.objects.add_preexisting(default, "")
                self.use(f"{value.__name__}.__defaults__", default, ref(default))
        self.notes.objects.take_snapshot(value, value.__name__)

    def _guard_function(self, path: str, function: types.FunctionType, fetch: Fetch) -> None:
        """Guard the code and the defaults of a function that may be called: they can be exchanged in place."""
        file = function.__code__.co_filename
        if is_user_file(file):
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                value, where = getattr(function, name), f"{path}.{name}"
                self.guard(function, ATTRIBUTE, name, value, where, fetch)
                if isinstance(value, tuple | dict) and not is_plain(value):
                    part_fetch = reader(fetch, ATTRIBUTE, name)
                    self._use_container(where, value, part_fetch, False, _SHALLOW)
        elif is_stdlib_file(file):
            # `functools.wraps`, `singledispatch`: the closure holds the user's function.
            for cell in function.__closure__ or ():
                inner = contents_of(cell)
                self.add_function(inner)
                if isinstance(inner, types.FunctionType) and inner is not function:
                    self._guard_function(path, inner, variable(cell))
                else:
                    self.use(path, inner, variable(cell), depth=_SHALLOW)


def _is_stdlib(cls: type) -> bool:
    return (
        cls.__module__.partition(".")[0] in sys.stdlib_module_names and cls.__module__ != "__main__"
    )


def _has_attributes(value: object) -> bool:
    if isinstance(value, torch.nn.Module | torch.utils.data.Dataset):
        return True
    module = type(value).__module__.partition(".")[0]
    if module in ("torch", "jax", "jaxlib", "numpy", "jaxtorch", "builtins"):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _attribute_names(value: object) -> list[str]:
    names = list(getattr(value, "__dict__", ()))
    if isinstance(value, torch.nn.Module):
        names = [n for n in names if n not in MODULE_ATTRIBUTES] + list(value._modules)
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [n for n in dict.fromkeys(names) if n not in ("__dict__", "__weakref__")]
