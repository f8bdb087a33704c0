"""Resolves, when a function is entered, what its bytecode is about to read and write.

The bytecode gives chains (`reads.py`) such as `cfg.model.scale`. A chain begins at a *root* in the frame: a global, a
variable of the closure, an argument or an imported module. Each step is guarded, and the value at the end counts as
used. A chain that ends in an assignment gives a *slot*, which the code may change (`effects.py`).

An argument is a root only if it existed before the code ran.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import types
from collections import deque
from typing import Any

import numpy as np
import torch

from ...programs.site import is_user_file
from ..numbers import NeedsNumber, Number
from . import outside
from .closures import Closures
from .fetch import Fetch, Found, ref, strong
from .guard import ATTRIBUTES, ITEMS
from .notes import said
from .reads import ARGUMENT, ATTRIBUTE, CLOSURE, GLOBAL, IMPORT, Chain, Reads, reads_of
from .slots import Slot
from .tokens import CONTAINERS, is_plain, is_users_class
from .values import Values

Tensor = torch.Tensor

_TORCH = os.path.dirname(torch.__file__) + os.sep
_ALWAYS_MET = (torch.nn.Module, torch.optim.Optimizer)
# With one of these names in it, code may tell a number from the tensor that stands for it.
_ASKS_FOR_TYPES = frozenset({"type", "isinstance", "is_tensor", "hasattr", "callable", "__class__"})


class Chains:
    """Follows the chains of functions.

    Args:
        values: where what is read is noted.
        closures: finds the variables of closures.

    Attributes:
        has_numbers: whether an argument of the call is a number that is an operand of the program.
    """

    def __init__(self, values: Values, closures: Closures):
        self._values = values
        self._notes = values.notes
        self._closures = closures
        self.has_numbers = False

    def enter(self, frame: types.FrameType, users: bool) -> None:
        """Note what a function of the user or of a library reads and writes, when it is entered.

        Raises:
            NeedsNumber: if the function may ask for the type of an argument that is an operand.
        """
        notes, reads, variables = self._notes, reads_of(frame.f_code), frame.f_locals
        if not self._is_new(frame, reads, variables):
            return
        notes.names |= reads.names
        notes.strings.update(reads.strings)
        notes.uses_gradients |= reads.gradients
        asks = self.has_numbers and users and not _ASKS_FOR_TYPES.isdisjoint(reads.names)
        if asks and ("type" in reads.names or Number in map(type, variables.values())):
            raise NeedsNumber()
        code, constants = frame.f_code, frame.f_code.co_consts
        notes.words.update(code.co_names, code.co_freevars, code.co_varnames, code.co_cellvars)
        for constant in constants:  # a tuple: the names of keywords
            parts = constant if isinstance(constant, tuple) else (constant,)
            notes.words.update(part for part in parts if isinstance(part, str))
        self._closures.inside.update(c for c in constants if isinstance(c, types.CodeType))
        roots = _Roots(self._values, self._closures, frame, variables, users)
        if users and frame.f_code.co_argcount:
            self._method(frame.f_code, variables)
        for chain in reads.chains:
            self._follow(chain, roots, reads.dynamic)
        if not reads.names.isdisjoint(("import_module", "__import__")):
            for name in filter(sys.modules.__contains__, constants):
                modules = strong(sys.modules)
                found = self._values.item(sys.modules, name, f"sys.modules[{name!r}]", modules)
                if found is not None:
                    self._values.expect(*found)
        for increment in reads.increments:
            slot = self._slot(increment.target, roots)
            if slot is not None and type(slot.get()) in (int, float):
                notes.effects.count(slot, increment.by)
            elif slot is not None:  # a tensor, a list: `+=` reads it
                self._follow(increment.target, roots, reads.dynamic)
                notes.effects.store(slot, increment.target.line, roots.file)
        for chain in reads.stores:
            slot = self._slot(chain, roots)
            if slot is not None:
                notes.effects.store(slot, chain.line, roots.file)

    def _is_new(self, frame: types.FrameType, reads: Reads, variables: dict[str, Any]) -> bool:
        """Whether the function did not begin yet with these objects from outside."""
        roots = {(c.name, c.root) for c in (*reads.chains, *reads.stores) if c.root is not GLOBAL}
        met = []
        for name, root in sorted(roots):
            value = variables.get(name)
            is_outside = root is CLOSURE or self._notes.is_met(value)
            met.append(id(value) if is_outside else 0)
        return self._notes.is_first((frame.f_code, id(frame.f_globals), *met))

    def _method(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        """A method runs: its class may get another one."""
        owner = variables.get(code.co_varnames[0])
        cls = type(owner)
        users = is_users_class(owner if isinstance(owner, type) else cls)
        if owner is None or isinstance(owner, Tensor) or not users:
            return
        cls = owner if isinstance(owner, type) else cls
        for name, base in _places(cls, code):
            self._values.of_bases(cls, name, base)
            self._values.of_class(cls, name, f"{cls.__name__}.{name}", ref(cls))
        self._values.class_later(cls.__name__, cls)
        if code.co_name == "__init__" and not self._notes.is_met(owner):
            self._notes.make(owner)
        else:
            self._notes.meet(owner, "")

    def _follow(self, chain: Chain, roots: _Roots, dynamic: bool) -> None:
        """Guard what a chain reads."""
        found = roots.find(chain)
        if found is None:
            return
        if roots.users:
            self._notes.line = roots.file, chain.line
        path, value, fetch = owner = found
        for kind, step in chain.steps:
            owner = path, value, fetch
            if isinstance(value, np.ndarray) or (
                isinstance(value, Tensor) and step not in vars(value)
            ):
                break
            if step == "append" and type(value) in (list, deque):
                self._notes.effects.contain(path, value, fetch, self._notes.line)
                return  # what it holds is not read
            known = self._step(kind, step, path, value, fetch)
            if known is None:
                break
            path, value, fetch = known
        if roots.users:
            what = outside.what_of(value)
            if what is not None:
                self._notes.warn(what, roots.file, chain.line)
                return
        if outside.is_iterator(value) and (chain.root is not ARGUMENT or path != chain.name):
            outside.refuse_iterator(path, roots.file, chain.line)
        self._values.expect(path, value, fetch, dynamic)
        # A method of torch's on a module reaches what it will of it.
        method = isinstance(owner[1], torch.nn.Module) and isinstance(value, types.FunctionType)
        if method and not is_user_file(value.__code__.co_filename):
            self._values.expect(*owner, dynamic)

    def _step(self, kind: str, step: Any, path: str, value: Any, fetch: Fetch) -> Found | None:
        if kind is ATTRIBUTE:
            return self._values.attribute(value, step, path, fetch)
        return self._values.item(value, step, f"{path}[{step!r}]", fetch)

    def _slot(self, chain: Chain, roots: _Roots) -> Slot | None:
        """The place at the end of a chain, which the code writes."""
        if not chain.steps:
            return roots.slot(chain)
        found = roots.find(chain._replace(steps=()))
        if found is None:
            return None
        path, value, fetch = found
        for kind, step in chain.steps[:-1]:
            known = self._step(kind, step, path, value, fetch)
            if known is None:
                return None
            path, value, fetch = known
        kind, step = chain.steps[-1]
        if value is None or isinstance(value, Tensor):
            return None
        if _runs_code(value, kind, step):
            if isinstance(value, CONTAINERS):
                self._notes.effects.contain(path, value, fetch, self._notes.line)
            return None
        if kind is ATTRIBUTE:
            return Slot.attribute(value, step, f"{path}.{step}")
        return Slot.item(value, step, f"{path}[{said(step)}]", fetch)


def _runs_code(owner: Any, kind: str, step: Any) -> bool:
    """Whether a write to an attribute or an item runs user code, whose own writes are recorded."""
    cls: Any = type(owner)
    users = [base for base in cls.__mro__ if is_users_class(base)]
    if kind is not ATTRIBUTE:
        return any("__setitem__" in vars(base) for base in users)
    if isinstance(owner, torch.nn.Module | types.ModuleType | type):
        return False
    if any("__setattr__" in vars(base) for base in users):
        return True
    descriptor = inspect.getattr_static(cls, step, None)
    is_slot = isinstance(descriptor, types.MemberDescriptorType)
    return hasattr(type(descriptor), "__set__") and not is_slot


def _places(cls: type, code: types.CodeType) -> list[tuple[str, type]]:
    """(name, class) of the functions with that code object in a class and its bases."""
    found = []
    for base in cls.__mro__:
        for name, value in vars(base).items():
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if isinstance(inner, types.FunctionType) and inner.__code__ is code:
                found.append((name, base))
    return found


class _Roots:
    """Where the chains of one frame begin."""

    def __init__(
        self,
        values: Values,
        closures: Closures,
        frame: types.FrameType,
        variables: dict[str, Any],
        users: bool,
    ):
        self._values = values
        self._notes = values.notes
        self._closures = closures
        self._frame = frame
        self._locals = variables
        self.users = users
        self.file = frame.f_code.co_filename

    def find(self, chain: Chain) -> Found | None:
        """A chain's root, guarded."""
        name = chain.name
        if chain.root is ARGUMENT:
            value = self._locals.get(name)
            if type(value) is Number or is_plain(value):
                return None
            if not self._notes.is_met(value) and not isinstance(value, _ALWAYS_MET):
                return None
            if self._notes.is_made(value):
                return None
            return self._notes.path_of(value, name), value, ref(value)
        if chain.root is CLOSURE:
            return self._variable(name)
        if chain.root is IMPORT:
            return self._values.item(
                sys.modules, name, f"sys.modules[{name!r}]", strong(sys.modules)
            )
        return self._global(name)

    def _is_own(self, name: str) -> bool:
        """Whether a global is what the code sets itself."""
        own = self._notes.own
        return self._frame.f_globals is own.namespace and name in own.names

    def _global(self, name: str) -> Found | None:
        table = self._frame.f_globals
        if self._is_own(name):
            return None
        if name not in table:
            return self._builtin(name, table)
        value = table[name]
        if not self.users and isinstance(value, types.ModuleType | type):
            return None  # an installed library does not change, but for functions that are patched
        if not self.users and callable(value):
            if not self.file.startswith(_TORCH):
                self._notes.guard(table, ITEMS, name, value, name, strong(table))
            return None
        return self._values.item(table, name, name, strong(table))

    def _builtin(self, name: str, table: dict[str, Any]) -> Found | None:
        if not self.users:
            return None
        self._notes.absent.setdefault(id(table), (table, set()))[1].add(name)
        strings = reads_of(self._frame.f_code).strings
        if name == "globals":  # a key may be made of them
            for key in [k for k in table if any(string in k for string in strings)]:
                found = self._global(key)
                if found is not None:
                    self._values.expect(*found)
        return self._values.item(vars(builtins), name, name, strong(vars(builtins)))

    def _variable(self, name: str) -> Found | None:
        cells = self._closures.cells_of(self._frame, name)
        if name not in self._locals:
            return None
        value = self._locals[name]
        if not cells:
            return (name, value, ref(value)) if self._notes.is_met(value) else None
        fetches = map(self._closures.fetch_of, cells)
        kind, key = ATTRIBUTES, "cell_contents"
        found = [
            self._values.guard(cell, kind, key, value, name, fetch)
            for cell, fetch in zip(cells, fetches, strict=True)
        ]
        return found[0]

    def slot(self, chain: Chain) -> Slot | None:
        """The slot of a global or a closure variable that the code writes."""
        if chain.root is GLOBAL:
            if self._is_own(chain.name):
                return None
            return Slot.item(self._frame.f_globals, chain.name, chain.name)
        cells = self._closures.cells_of(self._frame, chain.name)
        return Slot.cell(cells[0], chain.name) if cells else None
