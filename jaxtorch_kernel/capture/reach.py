"""Finds what code can reach by name, before it runs.

Some things must be known in advance: the input tensors of a notebook cell, the modules on the CPU whose tensors are
lent to the device, the `.grad` of a step's leaves. The search is static, so it may find too much or too little. What a
program depends on is not taken from it: `dependencies/` records that while the code runs.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from ..base import running_function
from ..base.torch_private import pytree
from ..programs.site import is_user_file
from .dependencies.reads import names_filled, names_read
from .dependencies.tokens import is_plain, is_user_class, items_of

_MISSING = object()
_DEEPEST = 8


class Reach:
    """Everything reachable from some names of a namespace: through user functions, containers, objects and modules.

    Args:
        namespace: where the names are looked up.
        hidden: names that the code sets itself before it reads them.

    Attributes:
        inputs: the values that contain tensors, by their name; tensors of modules on the CPU, by their path.
        lent: for each input of a module on the CPU, its path, the module's table that contains it, and its key there.
        modules, optimizers: by their path.
        tensors: all tensors that were found.
        codes: the code of user functions.
    """

    def __init__(self, namespace: dict[str, Any], hidden: Iterable[str] = ()):
        self.namespace = namespace
        self.hidden = frozenset(hidden)
        self.inputs: dict[str, Any] = {}
        self.lent: list[tuple[str, dict[str, torch.Tensor], str]] = []
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.tensors: list[torch.Tensor] = []
        self.codes: list[types.CodeType] = []
        self._names: set[str] = set()
        self._seen: dict[int, object] = {}

    def name(self, name: str, hand_over: bool = True) -> None:
        """Follow one name of the namespace. `hand_over`: make its value an input if it contains tensors."""
        if name in self._names or name in self.hidden:
            return
        self._names.add(name)
        value = self.namespace.get(name, _MISSING)
        if value is not _MISSING:
            if hand_over and _contains_tensors(value):
                self.inputs[name] = value
            self.visit(name, value)

    def leave_filled(self, code: types.CodeType) -> None:
        """Remove containers that the code or a function of it fills from the inputs: the code accesses them by name."""
        for some in (code, *self.codes):
            for name in names_filled(some):
                if not isinstance(self.inputs.get(name), torch.Tensor):
                    self.inputs.pop(name, None)

    def visit(self, path: str, value: object, depth: int = _DEEPEST) -> None:
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
            for key, item in list(items_of(value)):
                self.visit(f"{path}[{key!r}]", item, depth - 1)
        elif isinstance(value, list | tuple | set | frozenset):
            for i, item in enumerate(value):
                self.visit(f"{path}[{i}]", item, depth - 1)
        elif isinstance(value, type):
            if is_user_class(value):
                for name, item in list(vars(value).items()):
                    self.visit(f"{path}.{name}", getattr(item, "__func__", item), depth - 1)
        elif "__wrapped__" in (attributes := _attributes(value)):
            self.visit(path, attributes["__wrapped__"], depth - 1)
        elif is_user_class(type(value)) and hasattr(value, "__dict__"):
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
            self.visit(f"{path}.{name}", contents_of(cell), depth - 1)
        for name in names_read(code).globals:
            if function.__globals__ is self.namespace:
                self.name(name)
            elif name in function.__globals__:
                self.visit(name, function.__globals__[name], depth - 1)

    def _module(self, path: str, module: torch.nn.Module) -> None:
        self.modules[path] = module
        attributes = vars(module)
        if is_user_class(type(module)):
            self.visit(type(module).__name__, type(module))
        for name, value in list(attributes.items()):
            if name not in ("_parameters", "_buffers", "_modules"):
                self.visit(f"{path}.{name}", value, 3)
        for table in ("_parameters", "_buffers"):
            for name, value in attributes[table].items():
                if value is not None and value.device.type == "cpu":
                    self.inputs[f"{path}.{name}"] = value
                    self.lent.append((f"{path}.{name}", attributes[table], name))
                if value is not None:
                    self.tensors.append(value)
        for name, child in attributes["_modules"].items():
            self.visit(f"{path}.{name}", child)


def _contains_tensors(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, torch.nn.Module | type | types.FunctionType | types.ModuleType):
        return False
    try:
        return any(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(value))
    except RecursionError:  # a list that contains itself
        return False


def _attributes(value: object) -> dict[str, Any]:
    """The attributes of an object, read without running code of its class."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(value, "__dict__")
        return attributes
    except AttributeError:
        return {}


def tensors_in_reach(
    function: Callable[..., object], leaves: Collection[object]
) -> list[torch.Tensor]:
    """The tensors among `leaves`, and in the function's defaults, closure and globals, one level into objects."""
    reached: dict[int, torch.Tensor] = {}
    for value in [*leaves, *reachable(function)]:
        if isinstance(value, torch.Tensor):
            tensors = [value]
        elif isinstance(value, torch.nn.Module):
            tensors = list(value.parameters())
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [p for group in value.param_groups for p in group["params"]]
        else:
            continue
        reached.update((id(t), t) for t in tensors)
    return list(reached.values())


def reachable(function: Any) -> list[Any]:
    """Everything that a function names, one level into containers and objects."""
    instance = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if hasattr(
        function, "reached"
    ):  # of a notebook cell (`cells/program.py`), which has searched already
        return list(function.reached())
    code = getattr(function, "__code__", None)
    values = [] if instance is None else [instance]
    if isinstance(function, torch.nn.Module):
        values.append(function)
    if code is not None:
        table = function.__globals__
        values += [table[name] for name in code.co_names if name in table]
        values += [contents_of(cell) for cell in function.__closure__ or ()]
        values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    reached = []
    for value in values:
        reached.append(value)
        if isinstance(value, dict):
            reached += [item for _, item in items_of(value)]
        elif isinstance(value, list | tuple):
            reached += value
        elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
            reached += vars(value).values()
    return reached


def contents_of(cell: types.CellType) -> object:
    """The contents of a closure's cell; None if it is empty."""
    return running_function.contents_of(cell, None)
