"""What a torch module's methods read besides what its own code mentions.

A call of a module reads its tables of hooks and the global ones, and takes `forward` from the module or from its class.
This project's own hooks exist only during a trace and do not count. A method such as `state_dict` reads the whole
module tree.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules import module as torch_modules

from .fetch import ModuleTable, ref, strong
from .followed import OF_EVERY_MODULE
from .guard import ATTRIBUTES, Check, users_hooks
from .tokens import is_users_class
from .values import Values

# A module's tables of hooks that its call looks into, and those of all modules.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(
    name for name in vars(torch_modules) if name.startswith("_global_") and name.endswith("_hooks")
)


class Modules:
    """Notes what is read of torch modules.

    Args:
        values: where it is noted.
    """

    def __init__(self, values: Values):
        self._values = values
        self._notes = values.notes

    def called(self, module: torch.nn.Module) -> None:
        """Note a call of a module: its hooks, and whether `forward` comes from its class or from the module itself."""
        notes = self._notes
        if not notes.is_first((id(module), "called")):
            return
        reference = notes.modules[id(module)] = weakref.ref(module)
        path = notes.module_path(module)
        own = vars(module)
        for name in _HOOKS:
            self._hooks(own[name], f"{path}.{name}", reference)
        if notes.is_first("hooks of all modules"):
            for name in _GLOBAL_HOOKS:
                self._hooks(vars(torch_modules)[name], name, None)
        cls = type(module)
        if "forward" not in own and not own["_modules"] and not is_users_class(cls):
            notes.attributes.append((reference, path, own))
            self._values.guard(
                cls, ATTRIBUTES, "forward", cls.forward, f"{cls.__name__}.forward", ref(cls)
            )
        else:
            self._values.attribute(module, "forward", path, ref(module))

    def _hooks(self, hooks: dict[Any, Any], path: str, module: Any) -> None:
        notes = self._notes
        users = users_hooks(hooks)
        if not users:
            notes.hookless.append((module, path, hooks))  # ours are there only while code is traced
            return
        for hook in hooks.values():
            self._values.may_run(hook)
        fetch, expected = strong(hooks), tuple(map(id, users.values()))
        notes.checks[id(hooks)] = Check(
            path,
            "has different hooks",
            lambda: tuple(map(id, users_hooks(fetch()).values())) == expected,
        )

    def read_whole(self, module: torch.nn.Module) -> None:
        """All of a module's tree is read."""
        notes = self._notes
        if not notes.is_first((id(module), "whole")):
            return
        notes.modules[id(module)] = weakref.ref(module)
        path = notes.module_path(module)
        own = vars(module)
        for name in own.keys() - OF_EVERY_MODULE:
            self._values.read_later(path, module, name)
        notes.table(path, module, own["_parameters"])
        notes.table(path, module, own["_buffers"])
        for name, p in own["_parameters"].items():
            if p is not None:
                self._values.attributes_later(f"{path}.{name}", p)
        children = ModuleTable(ref(module), "_modules")
        notes.contents(f"{path}._modules", own["_modules"], children)
        for child in own["_modules"].values():
            if child is not None and not notes.is_made(child):
                self.read_whole(child)

    def read_unseen(self, module: torch.nn.Module) -> None:
        """All of a module's tree is read, and what a call of it would read: another module is called for it."""
        self.read_whole(module)
        for part in module.modules():
            self.called(part)
