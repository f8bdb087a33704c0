"""Resolves, when a function is entered, what its bytecode is about to read and write.

The bytecode gives chains (`reads.py`) such as `cfg.model.scale`. A chain begins at a *root* in the frame: a global, a
closure variable, an argument or an imported module. Each step is guarded, and the value at the end counts as used. A
chain that ends in an assignment gives a *slot*, which the code may change (`effects.py`).

An argument is a root only if it existed before the code ran.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...programs.site import is_user_file
from ..numbers import NeedsNumber
from . import outside
from .closures import Closures
from .enumerated import Enumerated
from .fetch import Fetch, Resolved, ref, strong
from .notes import key_text
from .reads import ARGUMENT, ATTRIBUTE, CLOSURE, GLOBAL, IMPORT, ITEM, Chain, Reads, reads_of
from .slots import Slot
from .tokens import CONTAINERS, is_plain, is_user_class
from .values import Values

Tensor = torch.Tensor
Variables = Mapping[str, object]  # of a frame

_TORCH = os.path.dirname(torch.__file__) + os.sep
# Roots even if the code reached them in no other way: an argument of these types is never a value of the trace.
_ALWAYS_ROOTS = (torch.nn.Module, torch.optim.Optimizer)
# The attributes of an entry of a class that hold functions.
_FUNCTIONS_OF: dict[type, tuple[str, ...]] = {
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    functools.partialmethod: ("func",),
}


def _asks_for_type(chain: Chain) -> bool:
    """Whether code calls `type`: of a chain, which then ends in `__class__`, or of another expression."""
    return (chain.root == GLOBAL and chain.name == "type") or (
        ATTRIBUTE,
        "__class__",
    ) in chain.steps


class Chains:
    """Follows the chains of functions.

    Args:
        values: notes what is read.
        closures: finds closure variables.

    Attributes:
        has_numbers: whether an argument of the call is a number that is an operand of the program.
    """

    def __init__(self, values: Values, closures: Closures):
        self._values = values
        self._notes = values.notes
        self._closures = closures
        self._enumerated = Enumerated(values)
        self.has_numbers = False

    def enter(self, frame: types.FrameType, is_user: bool) -> None:
        """Note what a function of the user or of a library reads and writes, when it is entered.

        Raises:
            NeedsNumber: if the function may ask for the type of a number that varies.
        """
        reads, variables = reads_of(frame.f_code), frame.f_locals
        if not self._is_new(frame, reads, variables):
            return
        self._add_names(frame.f_code, reads)
        if self.has_numbers and any(map(_asks_for_type, reads.chains)):
            raise NeedsNumber()  # it would find a HostNumber
        roots = _Roots(self._values, self._closures, frame, variables, is_user)
        if is_user and frame.f_code.co_argcount:
            self._add_method(frame.f_code, variables)
        for chain in reads.chains:
            self._follow(chain, roots, reads.dynamic)
        if not reads.names.isdisjoint(("import_module", "__import__")):
            for name in filter(sys.modules.__contains__, frame.f_code.co_consts):
                if (module := roots.imported(name)) is not None:
                    self._values.use(*module, reads.dynamic)
        self._add_writes(reads, roots)

    def _add_names(self, code: types.CodeType, reads: Reads) -> None:
        """Note the names in a function."""
        notes = self._notes
        notes.names |= reads.names
        notes.strings.update(reads.strings)
        notes.uses_gradients |= reads.gradients
        notes.identifiers.update(
            code.co_names, code.co_freevars, code.co_varnames, code.co_cellvars
        )
        for constant in code.co_consts:  # a tuple may hold the names of keyword arguments
            parts = constant if isinstance(constant, tuple) else (constant,)
            notes.identifiers.update(part for part in parts if isinstance(part, str))
        inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
        self._closures.internal.update(inner)

    def _add_writes(self, reads: Reads, roots: _Roots) -> None:
        """Note the slots that a function increments and assigns."""
        effects = self._notes.effects
        for increment in reads.increments:
            slot = self._slot(increment.target, roots)
            if slot is not None and type(slot.get()) in (int, float):
                effects.increment(slot, increment.by)
            elif slot is not None:  # a tensor, a list: `+=` reads it
                self._follow(increment.target, roots, reads.dynamic)
                effects.store(slot, increment.target.line, roots.file)
        for chain in reads.stores:
            slot = self._slot(chain, roots)
            if slot is not None:
                effects.store(slot, chain.line, roots.file)

    def _is_new(self, frame: types.FrameType, reads: Reads, variables: Variables) -> bool:
        """Whether the function was not entered yet with these objects from outside."""
        chains = (*reads.chains, *reads.stores, *(i.target for i in reads.increments))
        roots = {(c.name, c.root) for c in chains if c.root is not GLOBAL}
        ids = []
        for name, root in sorted(roots):
            value = variables.get(name)
            is_outside = root is CLOSURE or self._notes.objects.is_preexisting(value)
            ids.append(id(value) if is_outside else 0)
        return self._notes.is_first((frame.f_code, id(frame.f_globals), *ids))

    def _add_method(self, code: types.CodeType, variables: Variables) -> None:
        """If a method runs, note that its class may get a different one."""
        owner = variables.get(code.co_varnames[0])
        cls = owner if isinstance(owner, type) else type(owner)
        if owner is None or isinstance(owner, Tensor) or not is_user_class(cls):
            return
        for name, base in _definitions(cls, code):
            self._values.base_entries(cls, name, base)
            self._values.class_attribute(cls, name, f"{cls.__name__}.{name}", ref(cls))
        self._values.defer_class(cls.__name__, cls)
        if code.co_name.startswith("__") and self._notes.objects.is_preexisting(owner):
            # Python looks special methods up on the class: no chain shows it.
            self._values.guard_class(owner, self._notes.objects.path_of(owner, cls.__name__))
        if code.co_name == "__init__" and not self._notes.objects.is_preexisting(owner):
            self._notes.objects.add_created(owner)
        elif not isinstance(owner, CONTAINERS):  # no Python code shows that the code creates one
            self._notes.objects.add_preexisting(owner, "")

    def _follow(self, chain: Chain, roots: _Roots, dynamic: bool) -> None:
        """Guard what a chain reads."""
        read = owner = roots.find(chain)
        if read is None or owner is None:
            return
        if roots.is_user:
            self._notes.line = roots.file, chain.line
        for kind, key in chain.steps:
            owner = read
            if isinstance(read.value, np.ndarray) or (
                isinstance(read.value, Tensor) and key not in vars(read.value)
            ):
                break
            if key == "append" and type(read.value) in (list, deque):
                self._notes.effects.add_container(*read, self._notes.line)
                return  # its contents are not read
            following = self._step(kind, key, *read)
            if following is None:
                break
            read = following
        if roots.is_user:
            what = outside.unrepeatable(read.value)
            if what is not None:
                self._notes.warn(what, roots.file, chain.line)
                return
        is_argument = chain.root is ARGUMENT and read.path == chain.name
        if outside.is_iterator(read.value) and not is_argument:
            outside.refuse_iterator(read.path, roots.file, chain.line)
        self._values.use(*read, dynamic)
        self._enumerated.add(*read, roots.code)
        # A method that a module inherits from torch may read anything of the module.
        method = read.value
        if (
            isinstance(owner.value, torch.nn.Module)
            and isinstance(method, types.FunctionType)
            and not is_user_file(method.__code__.co_filename)
        ):
            self._values.use(*owner, dynamic)

    def _step(self, kind: str, key: Any, path: str, value: object, fetch: Fetch) -> Resolved | None:
        if kind is ATTRIBUTE:
            return self._values.attribute(value, key, path, fetch)
        return self._values.item(value, key, f"{path}[{key!r}]", fetch)

    def _slot(self, chain: Chain, roots: _Roots) -> Slot | None:
        """The slot at the end of a chain that the code writes."""
        if not chain.steps:
            return roots.slot(chain)
        owner = roots.find(chain._replace(steps=()))
        for kind, key in chain.steps[:-1]:
            if owner is None:
                return None
            owner = self._step(kind, key, *owner)
        if owner is None or owner.value is None or isinstance(owner.value, Tensor):
            return None
        path, value, fetch = owner
        kind, key = chain.steps[-1]
        if _runs_code(value, kind, key):
            if isinstance(value, CONTAINERS):
                self._notes.effects.add_container(path, value, fetch, self._notes.line)
            return None
        if kind is ATTRIBUTE:
            return Slot.attribute(value, key, f"{path}.{key}")
        return Slot.item(value, key, f"{path}[{key_text(key)}]", fetch)


def _runs_code(owner: object, kind: str, key: str) -> bool:
    """Whether a write to an attribute or an item runs user code, whose own writes are recorded."""
    cls = type(owner)
    user_bases = [base for base in cls.__mro__ if is_user_class(base)]
    if kind is ITEM:
        return any("__setitem__" in vars(base) for base in user_bases)
    if isinstance(owner, torch.nn.Module | types.ModuleType | type):
        return False
    if any("__setattr__" in vars(base) for base in user_bases):
        return True
    descriptor = inspect.getattr_static(cls, key, None)
    is_slot = isinstance(descriptor, types.MemberDescriptorType)
    return hasattr(type(descriptor), "__set__") and not is_slot


def _definitions(cls: type, code: types.CodeType) -> list[tuple[str, type]]:
    """(name, class) of the methods and properties with that code object in a class and its bases."""
    return [
        (name, base)
        for base in cls.__mro__
        for name, value in vars(base).items()
        if any(getattr(function, "__code__", None) is code for function in _functions_of(value))
    ]


def _functions_of(value: object) -> list[object]:
    """The functions that an entry of a class may run: a method is one, a property has some."""
    wrapped = _FUNCTIONS_OF.get(type(value), ())
    return [getattr(value, name) for name in wrapped] if wrapped else [value]


class _Roots:
    """Where the chains of one frame begin."""

    def __init__(
        self,
        values: Values,
        closures: Closures,
        frame: types.FrameType,
        variables: Variables,
        is_user: bool,
    ):
        self._values = values
        self._notes = values.notes
        self._closures = closures
        self._frame = frame
        self._variables = variables
        self.is_user = is_user
        self.code = frame.f_code
        self.file = self.code.co_filename

    def find(self, chain: Chain) -> Resolved | None:
        """A chain's root, guarded."""
        if chain.root is ARGUMENT:
            return self._argument(chain.name)
        if chain.root is CLOSURE:
            return self._closure_variable(chain.name)
        if chain.root is IMPORT:
            return self.imported(chain.name)
        return self._global(chain.name)

    def _argument(self, name: str) -> Resolved | None:
        notes, value = self._notes, self._variables.get(name)
        if is_plain(value):
            return None
        if not notes.objects.is_preexisting(value) and not isinstance(value, _ALWAYS_ROOTS):
            return None
        if notes.objects.is_created(value):
            return None
        return Resolved(notes.objects.path_of(value, name), value, ref(value))

    def imported(self, name: str) -> Resolved | None:
        """An imported module."""
        modules = sys.modules
        return self._values.item(modules, name, f"sys.modules[{name!r}]", strong(modules))

    def _is_excluded(self, name: str) -> bool:
        """Whether the code sets a global itself."""
        excluded = self._notes.excluded
        return self._frame.f_globals is excluded.namespace and name in excluded.names

    def _global(self, name: str) -> Resolved | None:
        table = self._frame.f_globals
        if self._is_excluded(name):
            return None
        if name not in table:
            return self._builtin(name, table)
        value = table[name]
        # An installed library does not change, except for functions that somebody patches.
        if not self.is_user and isinstance(value, types.ModuleType | type):
            return None
        if not self.is_user and callable(value):
            if not self.file.startswith(_TORCH):
                previous = self._notes.effects.previous(table, ITEM, name, value)
                self._notes.guard(table, ITEM, name, previous, name, strong(table))
            return None
        return self._values.item(table, name, name, strong(table))

    def _builtin(self, name: str, table: dict[str, object]) -> Resolved | None:
        if not self.is_user:
            return None
        self._notes.absent.setdefault(id(table), (table, set()))[1].add(name)
        strings = reads_of(self._frame.f_code).strings
        if name == "globals":  # the code may build a key from these strings
            for key in [k for k in table if any(string in k for string in strings)]:
                value = self._global(key)
                if value is not None:
                    self._values.use(*value)
        return self._values.item(vars(builtins), name, name, strong(vars(builtins)))

    def _closure_variable(self, name: str) -> Resolved | None:
        variable = self._closures.variable_of(self._frame, name)
        if name not in self._variables:
            return None
        value = self._variables[name]
        if variable is None:
            is_preexisting = self._notes.objects.is_preexisting(value)
            return Resolved(name, value, ref(value)) if is_preexisting else None
        cell, fetch = variable
        return self._values.guard(cell, ATTRIBUTE, "cell_contents", value, name, fetch)

    def slot(self, chain: Chain) -> Slot | None:
        """The slot of a global or a closure variable that the code writes."""
        if chain.root is GLOBAL:
            if self._is_excluded(chain.name):
                return None
            return Slot.item(self._frame.f_globals, chain.name, chain.name)
        variable = self._closures.variable_of(self._frame, chain.name)
        return None if variable is None else Slot.variable(variable[0], chain.name)
