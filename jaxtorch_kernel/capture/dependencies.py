"""Everything that code can reach by name beside tensors, as one dictionary: path -> what stands there.

A program that was traced once is right for as long as its code would do the same. `walk` follows what the code names:
functions (their code, defaults, closures and globals), classes, modules with their attributes and hooks, containers and
plain values. Two walks that give equal dictionaries promise the same program; where they differ, the path says what
changed (`reasons.py`). Only the user's own code is followed: an installed library is taken not to change.

A path is what one would write: `model.1.p`, `batch['mask']`, `Net.forward`.
"""

from __future__ import annotations

import dis
import enum
import functools
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..dispatch.site import _is_user, _user_file
from .contents import Container

_MISSING = object()
_CONSTANTS: tuple[type, ...] = (torch.dtype, torch.device, torch.Size, torch.layout)
_CONSTANTS += (range, slice, enum.Enum, np.generic, np.dtype)
_PLAIN = frozenset({int, bool, str, bytes, complex, type(None), type(...), type(NotImplemented)})
_HOOKS = tuple(
    name
    for name in vars(torch.nn.Module())
    if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))
    and "state_dict" not in name
)
_TABLES = ("_parameters", "_buffers", "_modules")
# What a module keeps for itself: of no meaning to its forward, or followed under another name.
_OWN = frozenset(vars(torch.nn.Module())) - {"training"}
_LARGEST = 1 << 16  # elements of an array that is compared by value


class Value(NamedTuple):
    """Something that is compared by what it is."""

    type: type
    value: Any


class Same(NamedTuple):
    """Something that is compared by identity. The number is that of a weak reference, which the walk keeps."""

    kind: str
    number: int


class Held(NamedTuple):
    """A tensor that is read where it is: at each run on the device; once on the CPU, whose version counts."""

    same: Same
    version: int
    requires_grad: bool


class TensorLook(NamedTuple):
    """What a program depends on of a tensor that is handed to it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    device: str


class Walk:
    """What is reached from some names of a namespace.

    Args:
        namespace: where the names are looked up.
        hidden: names that the code sets itself before it reads them.
        attributes: names of attributes that the code reads, of which a user's module matters.

    Attributes:
        tokens: path -> what stands there.
        inputs: the names that hold tensors, and what they hold: they are handed over, not compared.
        lent: the inputs that are parts of modules on the CPU: the input's name, the module's table, the name there.
        modules: path -> the module there.
        statics: the names of tensors that are compared by value, and their values.
        containers: what was met that can change in place.
        optimizers: path -> the optimizer there.
        tensors: the tensors met.
        kept: what the numbers in the tokens stand for; to be kept as long as they.
    """

    def __init__(
        self, namespace: dict[str, Any], hidden: Iterable[str] = (), attributes: Iterable[str] = ()
    ):
        self.namespace = namespace
        self.hidden = frozenset(hidden)
        self.attributes = frozenset(attributes)
        self.tokens: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}
        self.modules: dict[str, torch.nn.Module] = {}
        self.statics: dict[str, torch.Tensor] = {}
        self.lent: list[tuple[str, dict[str, Any], str]] = []
        self.containers: list[Container] = []
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.tensors: list[torch.Tensor] = []
        self._names: set[str] = set()
        self._seen: dict[int, Any] = {}
        self.kept: list[Any] = []

    def name(self, name: str) -> None:
        """Follow one name of the namespace."""
        if name in self._names or name in self.hidden:
            return
        self._names.add(name)
        value = self.namespace.get(name, _MISSING)
        if value is not _MISSING:
            if _holds_tensors(value):
                self.inputs[name] = value
            self.visit(name, value)

    def fixed(self, name: str, value: torch.Tensor) -> None:
        """Compare a tensor by its value, which the code may then ask for."""
        self._names.add(name)
        self.statics[name] = held = value.detach().cpu()
        self.tokens[name] = Value(torch.Tensor, (look(value), held.numpy().tobytes()))

    def visit(self, path: str, value: Any) -> None:
        """Follow one value."""
        kind = type(value)
        if kind in _PLAIN:
            self.tokens[path] = Value(kind, value)
        elif kind is float:  # by its digits: nan is nan, and 0.0 is not -0.0
            self.tokens[path] = Value(kind, repr(value))
        elif isinstance(value, torch.Tensor):
            self._tensor(path, value)
        elif isinstance(value, _CONSTANTS):
            self.tokens[path] = Value(kind, value if kind is not slice else repr(value))
        elif id(value) in self._seen:
            self.tokens[path] = Value(str, self._seen[id(value)])
        else:
            self._seen[id(value)] = path
            self._object(path, value)

    def _tensor(self, path: str, value: torch.Tensor) -> None:
        if path in self.inputs or _root(path) in self.inputs:
            self.tensors.append(value)
        else:
            self._held(path, value)

    def _held(self, path: str, value: torch.Tensor) -> None:
        version = value._version if value.device.type == "cpu" and not value.is_inference() else 0
        self.tokens[path] = Held(self._same("tensor", value), version, value.requires_grad)
        self.tensors.append(value)

    def _same(self, kind: str, value: Any) -> Same:
        try:
            self.kept.append(weakref.ref(value))
        except TypeError:  # it has none
            self.kept.append(value)
        return Same(kind, id(self.kept[-1]))

    def _object(self, path: str, value: Any) -> None:
        for kinds, method in self._BY_KIND:
            if isinstance(value, kinds):
                method(self, path, value)
                return
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType | torch.nn.Module):
            self.tokens[path] = Value(type, type(value).__name__)
            self.visit(path + ".__wrapped__", wrapped)
        elif hasattr(value, "__dict__") and (
            _is_users(type(value)) or isinstance(value, types.SimpleNamespace)
        ):
            self.tokens[path] = self._same(type(value).__name__, value)
            self.visit(type(value).__name__, type(value))
            self._attributes(path, vars(value))
        else:
            self.tokens[path] = self._same(type(value).__name__, value)

    def _attributes(self, path: str, attributes: dict[str, Any]) -> None:
        self.containers.append(Container(path, attributes, True))
        for name, value in attributes.items():
            self.visit(f"{path}.{name}", value)

    def _function(self, path: str, function: Any) -> None:
        code = function.__code__
        if not _is_user_file(code.co_filename):
            self.tokens[path] = self._same("function", function)
            return
        self.tokens[path] = code
        for value in function.__defaults__ or ():
            self.visit(f"{path}.__defaults__[{len(self.tokens)}]", value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self.visit(f"{path}.{name}", value)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.visit(f"{path}.{name}", cell.cell_contents)
            except ValueError:
                continue
        if vars(function):
            self._attributes(path, vars(function))
        table = function.__globals__
        used = names_read(code)
        for name in used.globals:
            if table is self.namespace:
                self.attributes |= used.attributes
                self.name(name)
            elif name in table:
                self.attributes |= used.attributes
                self.visit(f"{table.get('__name__')}.{name}", table[name])

    def _method(self, path: str, method: Any) -> None:
        self.visit(path, method.__func__)
        self.visit(path + ".__self__", method.__self__)

    def _class(self, path: str, cls: type) -> None:
        if not _is_users(cls):
            self.tokens[path] = self._same("class", cls)
            return
        for name, value in vars(cls).items():
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            elif name in ("__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__"):
                continue
            if callable(value) or type(value) in _PLAIN or type(value) is float:
                self.visit(f"{path}.{name}", value)
        for base in cls.__bases__:
            if _is_users(base):
                self.visit(base.__name__, base)

    def _partial(self, path: str, value: Any) -> None:
        self.visit(path + ".func", value.func)
        self.visit(path + ".args", value.args)
        self.visit(path + ".keywords", value.keywords)

    def _python_module(self, path: str, value: Any) -> None:
        self.tokens[path] = self._same("module", value)
        if _is_user_file(getattr(value, "__file__", None) or "<frozen"):
            for name in sorted(self.attributes & vars(value).keys()):
                self.visit(f"{path}.{name}", vars(value)[name])

    def _sequence(self, path: str, value: Any) -> None:
        self.tokens[path] = Value(type(value), len(value))
        if isinstance(value, list):
            self.containers.append(Container(path, value, False))
        for i, item in enumerate(value):
            self.visit(f"{path}[{i}]", item)

    def _mapping(self, path: str, value: Any) -> None:
        self.tokens[path] = Value(type(value), len(value))
        self.containers.append(Container(path, value, False))
        for key, item in value.items():
            self.visit(f"{path}[{key!r}]", item)

    def _set(self, path: str, value: Any) -> None:
        self.tokens[path] = Value(type(value), frozenset(value))
        if isinstance(value, set):
            self.containers.append(Container(path, value, False))

    def _array(self, path: str, value: np.ndarray) -> None:
        known = (
            self._same("array", value) if value.size > _LARGEST or value.dtype.hasobject else None
        )
        self.tokens[path] = known or Value(
            np.ndarray, (value.shape, str(value.dtype), value.tobytes())
        )

    def _optimizer(self, path: str, value: Any) -> None:
        self.optimizers[path] = value
        self.tokens[path] = self._same(type(value).__name__, value)

    def _module(self, path: str, module: torch.nn.Module) -> None:
        self.modules[path] = module
        own = vars(module)
        self.tokens[path] = self._same(type(module).__name__, module)
        self.containers.append(Container(path, own, True))
        if _is_users(type(module)):
            self.visit(type(module).__name__, type(module))
        for name in [name for name in _HOOKS if own[name]]:
            for i, hook in enumerate(own[name].values()):
                self.visit(f"{path}.{name}[{i}]", hook)
        for name, value in own.items():
            if name not in _OWN:
                self.visit(f"{path}.{name}", value)
        for table in _TABLES:
            self.containers.append(Container(path, own[table], True))
            for name, value in own[table].items():
                where = f"{path}.{name}"
                if not isinstance(value, torch.Tensor):
                    self.visit(where, value)
                elif value.device.type == "cpu":
                    self.inputs[where] = value
                    self.lent.append((where, own[table], name))
                    self.tensors.append(value)
                else:
                    self._held(where, value)

    _BY_KIND: tuple[tuple[Any, Callable[[Any, str, Any], None]], ...] = (
        (torch.nn.Module, _module),
        (types.FunctionType, _function),
        (types.MethodType, _method),
        (type, _class),
        (types.ModuleType, _python_module),
        (list | tuple, _sequence),
        (dict, _mapping),
        (set | frozenset, _set),
        (functools.partial, _partial),
        (np.ndarray, _array),
        (torch.optim.Optimizer, _optimizer),
    )


class Names(NamedTuple):
    """What code reads: names outside itself, and attributes of anything."""

    globals: tuple[str, ...]
    attributes: frozenset[str]


@functools.lru_cache(4096)
def names_read(code: types.CodeType) -> Names:
    """The names that code, and the code inside it, looks up outside of functions.

    Example:
        >>> from jaxtorch.capture.dependencies import names_read
        >>> sorted(names_read(compile("y = [f(x).real for _ in z]", "", "exec")).globals)
        ['f', 'x', 'z']
    """
    found: dict[str, None] = {}
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            found[instruction.argval] = None
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            attributes.add(instruction.argval)
        elif isinstance(instruction.argval, types.CodeType):
            inner = names_read(instruction.argval)
            found.update(dict.fromkeys(inner.globals))
            attributes |= inner.attributes
    return Names(tuple(found), frozenset(attributes))


def look(tensor: torch.Tensor) -> TensorLook:
    """What a program depends on of a tensor that is handed to it."""
    return TensorLook(tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.device.type)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, torch.nn.Module | type | types.FunctionType | types.ModuleType):
        return False
    return any(isinstance(v, torch.Tensor) for v in torch.utils._pytree.tree_leaves(value))


def _root(path: str) -> str:
    return path.partition("[")[0].partition(".")[0]


def _is_users(cls: type) -> bool:
    """Whether a class is the user's own: of a notebook or of a file that is no installed library's."""
    import sys

    if cls.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is not None and _is_user_file(file)


def _is_user_file(name: str) -> bool:
    return _is_user[name] if name in _is_user else _user_file(name)
