"""Finds what code can reach by name, before it runs.

Some things must be known in advance: the input tensors of a cell, the modules on the CPU that are lent to the device,
the `.grad` of a step's leaves. The dependencies of a program are not guessed from this: `dependencies/` records them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable
from typing import Any

import torch

from ..base.torch_private import pytree
from ..programs.site import is_user_file
from .dependencies.reads import names_filled, names_read
from .dependencies.tokens import is_plain, is_users_class

_MISSING = object()
_DEEPEST = 8


class Reach:
    """Everything reachable from some names of a namespace: through user functions, containers, objects and modules.

    Args:
        namespace: where the names are looked up.
        hidden: names that the code sets itself before it reads them.

    Attributes:
        inputs: the names that hold tensors, and what they hold; a part of a module on the CPU by its path.
        lent: the inputs that are parts of modules on the CPU: the input's name, the module's table, the name there.
        modules, optimizers: path -> what is there.
        tensors: all tensors found.
        codes: the code of user functions.
    """

    def __init__(self, namespace: dict[str, Any], hidden: Iterable[str] = ()):
        self.namespace = namespace
        self.hidden = frozenset(hidden)
        self.inputs: dict[str, Any] = {}
        self.lent: list[tuple[str, dict[str, Any], str]] = []
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.tensors: list[torch.Tensor] = []
        self.codes: list[types.CodeType] = []
        self._names: set[str] = set()
        self._seen: dict[int, Any] = {}

    def name(self, name: str, hand_over: bool = True) -> None:
        """Follow one name of the namespace. `hand_over`: what holds tensors is an input."""
        if name in self._names or name in self.hidden:
            return
        self._names.add(name)
        value = self.namespace.get(name, _MISSING)
        if value is not _MISSING:
            if hand_over and _holds_tensors(value):
                self.inputs[name] = value
            self.visit(name, value)

    def leave_filled(self, code: types.CodeType) -> None:
        """Hand over no container that the code fills, itself or in a function: it is read and filled by its name."""
        for some in (code, *self.codes):
            for name in names_filled(some):
                if not isinstance(self.inputs.get(name), torch.Tensor):
                    self.inputs.pop(name, None)

    def visit(self, path: str, value: Any, depth: int = _DEEPEST) -> None:
        """Follow one value."""
        if is_plain(value) or id(value) in self._seen or not depth:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
        elif isinstance(value, torch.nn.Module):
            self._module(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers[path] = value
        elif isinstance(value, types.FunctionType):
            self._function(path, value, depth)
        elif isinstance(value, types.MethodType):
            self.visit(path, value.__func__, depth)
            self.visit(path, value.__self__, depth)
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.visit(path, part, depth - 1)
        elif isinstance(value, dict):
            for key, item in list(value.items()):
                self.visit(f"{path}[{key!r}]", item, depth - 1)
        elif isinstance(value, list | tuple | set | frozenset):
            for i, item in enumerate(value):
                self.visit(f"{path}[{i}]", item, depth - 1)
        elif isinstance(value, type):
            if is_users_class(value):
                for name, item in list(vars(value).items()):
                    self.visit(f"{path}.{name}", getattr(item, "__func__", item), depth - 1)
        elif "__wrapped__" in _own_attributes(value):  # `hasattr` may run code of the user's
            self.visit(path, value.__wrapped__, depth - 1)
        elif is_users_class(type(value)) and hasattr(value, "__dict__"):
            self.visit(type(value).__name__, type(value), depth)
            for name, item in list(vars(value).items()):
                self.visit(f"{path}.{name}", item, depth - 1)

    def _function(self, path: str, function: types.FunctionType, depth: int) -> None:
        code = function.__code__
        if not is_user_file(code.co_filename):
            return
        self.codes.append(code)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(path, value, depth - 1)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.visit(f"{path}.{name}", _contents(cell), depth - 1)
        for name in names_read(code).globals:
            if function.__globals__ is self.namespace:
                self.name(name)
            elif name in function.__globals__:
                self.visit(name, function.__globals__[name], depth - 1)

    def _module(self, path: str, module: torch.nn.Module) -> None:
        self.modules[path] = module
        own = vars(module)
        if is_users_class(type(module)):
            self.visit(type(module).__name__, type(module))
        for name, value in list(own.items()):
            if name not in ("_parameters", "_buffers", "_modules"):
                self.visit(f"{path}.{name}", value, 3)
        for table in ("_parameters", "_buffers"):
            for name, value in own[table].items():
                if value is not None and value.device.type == "cpu":
                    self.inputs[f"{path}.{name}"] = value
                    self.lent.append((f"{path}.{name}", own[table], name))
                if value is not None:
                    self.tensors.append(value)
        for name, child in own["_modules"].items():
            self.visit(f"{path}.{name}", child)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, torch.nn.Module | type | types.FunctionType | types.ModuleType):
        return False
    try:
        return any(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(value))
    except RecursionError:  # a list that holds itself
        return False


def _own_attributes(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()


def tensors_in_reach(function: Any, leaves: list[Any]) -> list[torch.Tensor]:
    """The tensors among `leaves`, and in the function's defaults, closure and globals, one level into objects."""
    found: dict[int, torch.Tensor] = {}
    for value in [*leaves, *reachable(function)]:
        if isinstance(value, torch.Tensor):
            tensors = [value]
        elif isinstance(value, torch.nn.Module):
            tensors = list(value.parameters())
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [p for group in value.param_groups for p in group["params"]]
        else:
            continue
        found.update((id(t), t) for t in tensors)
    return list(found.values())


def reachable(function: Any) -> list[Any]:
    """Everything that a function names, one level into containers and objects."""
    own = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if hasattr(function, "reached"):  # it knows better, as a cell does
        return list(function.reached())
    code = getattr(function, "__code__", None)
    values = [] if own is None else [own]
    if isinstance(function, torch.nn.Module):
        values.append(function)
    if code is not None:
        table = function.__globals__
        values += [table[name] for name in code.co_names if name in table]
        values += [_contents(cell) for cell in function.__closure__ or ()]
        values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found = []
    for value in values:
        found.append(value)
        if isinstance(value, dict):
            found += value.values()
        elif isinstance(value, list | tuple):
            found += value
        elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
            found += vars(value).values()
    return found


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
