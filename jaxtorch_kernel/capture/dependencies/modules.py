"""What a torch module's methods read besides what its own code mentions.

A call of a module reads its tables of hooks and the global ones, and takes `forward` from the module or from its class.
This project's own hooks exist only during a trace and do not count. A method such as `state_dict` reads the whole
module tree.
"""

from __future__ import annotations

import weakref

import torch
from torch.nn.modules import module as torch_modules

from .fetch import ModuleTable, ref
from .followed import MODULE_ATTRIBUTES
from .guard import Check, Hooks, user_hooks
from .reads import ATTRIBUTE
from .tokens import is_user_class
from .values import Values

# The tables of hooks that a call of a module reads: the module's own, and the global ones.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(
    name for name in vars(torch_modules) if name.startswith("_global_") and name.endswith("_hooks")
)


class Modules:
    """Notes what is read of torch modules.

    Args:
        values: notes each value.
    """

    def __init__(self, values: Values):
        self._values = values
        self._notes = values.notes
        # By the identity of a table to which the code adds a hook: the table, and the user's hooks before.
        self._hooks_before: dict[int, tuple[Hooks, Hooks]] = {}

    def enter_registration(self, hooks: Hooks) -> None:
        """Note the hooks in a table before the code adds one, which is not a dependency."""
        self._hooks_before.setdefault(id(hooks), (hooks, user_hooks(hooks)))

    def enter_call(self, module: torch.nn.Module) -> None:
        """Note a call of a module: its hooks, and whether `forward` comes from its class or from the module itself."""
        notes = self._notes
        if not notes.is_first((id(module), "called")):
            return
        reference = notes.modules[id(module)] = weakref.ref(module)
        path = notes.objects.module_path(module)
        attributes = vars(module)
        for name in _HOOKS:
            self._hooks(attributes[name], f"{path}.{name}", reference)
        if notes.is_first("global hooks"):
            for name in _GLOBAL_HOOKS:
                self._hooks(vars(torch_modules)[name], name, None)
        cls = type(module)
        if "forward" in attributes or attributes["_modules"] or is_user_class(cls):
            self._values.attribute(module, "forward", path, ref(module))
        else:
            notes.class_forwards.append((reference, path, attributes))
            where = f"{cls.__name__}.forward"
            self._values.guard(cls, ATTRIBUTE, "forward", cls.forward, where, ref(cls))

    def _hooks(self, hooks: Hooks, path: str, module: weakref.ref[torch.nn.Module] | None) -> None:
        notes = self._notes
        _, users = self._hooks_before.get(id(hooks), (hooks, user_hooks(hooks)))
        if not users:
            notes.empty_hooks.append((module, path, hooks))
            return
        for hook in users.values():
            self._values.add_function(hook)
        expected = tuple(map(id, users.values()))
        notes.checks[id(hooks)] = Check(
            path,
            "has different hooks",
            lambda: tuple(map(id, user_hooks(hooks).values())) == expected,
        )

    def read_whole(self, module: torch.nn.Module) -> None:
        """Note that all of a module's tree is read."""
        notes = self._notes
        if not notes.is_first((id(module), "whole")):
            return
        notes.modules[id(module)] = weakref.ref(module)
        path = notes.objects.module_path(module)
        attributes = vars(module)
        for name in attributes.keys() - MODULE_ATTRIBUTES:
            self._values.defer_attribute(path, module, name)
        notes.table(path, module, attributes["_parameters"])
        notes.table(path, module, attributes["_buffers"])
        for name, p in attributes["_parameters"].items():
            if p is not None:
                self._values.defer_tensor_attributes(f"{path}.{name}", p)
        children = ModuleTable(ref(module), "_modules")
        notes.contents(f"{path}._modules", attributes["_modules"], children)
        for child in attributes["_modules"].values():
            if child is not None and not notes.objects.is_created(child):
                self.read_whole(child)

    def read_as_called(self, module: torch.nn.Module) -> None:
        """Note all of a module's tree, and what a call of it would read: a copy of the module is called instead."""
        self.read_whole(module)
        for part in module.modules():
            self.enter_call(part)
