"""What a function that begins is about to read and write, looked up by its bytecode.

The bytecode says it as chains (`reads.py`): `cfg.model.scale`. A chain begins at a *root* in the frame: a global, a
variable of the closure, an argument, an imported module. Each of its steps is guarded, and what stands at its end
counts as used. A chain that ends in an assignment gives a *slot*, which the code may change (`effects.py`).

An argument begins a chain only where it was there before the code ran.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections import deque
from typing import Any

import numpy as np
import torch

from ..numbers import NeedsNumber, Number
from . import outside
from .closures import Closures
from .fetch import Fetch, Found, ref, strong
from .guard import ATTRIBUTES
from .reads import ARGUMENT, ATTRIBUTE, CLOSURE, GLOBAL, IMPORT, Chain, Reads, reads_of
from .slots import Slot
from .tokens import is_plain, is_users_class
from .values import Values

Tensor = torch.Tensor

_ALWAYS_MET = (torch.nn.Module, torch.optim.Optimizer)


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
        """A function begins, of the user's or of a library: note what it reads and writes.

        Raises:
            NeedsNumber: it may ask for the type of an argument that is an operand.
        """
        notes, reads, variables = self._notes, reads_of(frame.f_code), frame.f_locals
        if not self._is_new(frame, reads, variables):
            return
        notes.names |= reads.names
        notes.strings.update(reads.strings)
        notes.uses_gradients |= reads.gradients
        if self.has_numbers and users and "type" in reads.names:
            raise NeedsNumber()
        constants = frame.f_code.co_consts
        self._closures.inside.update(c for c in constants if isinstance(c, types.CodeType))
        roots = _Roots(self._values, self._closures, frame, variables, users)
        if users and frame.f_code.co_argcount:
            self._method(frame.f_code, variables)
        for chain in reads.chains:
            self._follow(chain, roots, reads.dynamic)
        for increment in reads.increments:
            slot = self._slot(increment.target, roots)
            if slot is not None and type(slot.get()) in (int, float):
                notes.effects.count(slot)
            elif slot is not None:  # a tensor, a list: `+=` reads it
                self._follow(increment.target, roots, reads.dynamic)
                notes.effects.store(slot, increment.target.line, roots.file)
        for chain in reads.stores:
            slot = self._slot(chain, roots)
            if slot is not None:
                notes.effects.store(slot, chain.line, roots.file)

    def _is_new(self, frame: types.FrameType, reads: Reads, variables: dict[str, Any]) -> bool:
        """Whether the function did not begin yet with these objects from outside."""
        names = {c.name for c in (*reads.chains, *reads.stores) if c.root is not GLOBAL}
        values = [variables.get(name) for name in sorted(names)]
        met = [id(value) if self._notes.is_met(value) else 0 for value in values]
        return self._notes.is_first((frame.f_code, id(frame.f_globals), *met))

    def _method(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        """A method runs: its class may get another one."""
        owner = variables.get(code.co_varnames[0])
        cls = type(owner)
        users = is_users_class(owner if isinstance(owner, type) else cls)
        if owner is None or isinstance(owner, Tensor) or not users:
            return
        for base in owner.__mro__ if isinstance(owner, type) else cls.__mro__:
            found = vars(base).get(code.co_name)
            if isinstance(found, classmethod | staticmethod):
                found = found.__func__
            if isinstance(found, types.FunctionType) and found.__code__ is code:
                self._values.of_base(base, code.co_name)
        self._notes.meet(owner, "")

    def _follow(self, chain: Chain, roots: _Roots, dynamic: bool) -> None:
        """Guard what a chain reads."""
        found = roots.find(chain)
        if found is None:
            return
        if roots.users:
            self._notes.line = roots.file, chain.line
        path, value, fetch = found
        for kind, step in chain.steps:
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
        if kind is ATTRIBUTE:
            return Slot.attribute(value, step, f"{path}.{step}")
        return Slot.item(value, step, f"{path}[{step!r}]", fetch)


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
            return self._notes.path_of(value, name), value, ref(value)
        if chain.root is CLOSURE:
            return self._variable(name)
        if chain.root is IMPORT:
            module = sys.modules.get(name)
            return None if module is None else (name, module, strong(module))
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
        if not self.users and (callable(value) or isinstance(value, types.ModuleType)):
            return None  # an installed library does not change
        return self._values.item(table, name, name, strong(table))

    def _builtin(self, name: str, table: dict[str, Any]) -> Found | None:
        if not self.users:
            return None
        self._notes.absent.setdefault(id(table), (table, set()))[1].add(name)
        if name == "globals":
            for string in reads_of(self._frame.f_code).strings:
                if string in table:
                    found = self._global(string)
                    if found is not None:
                        self._values.expect(*found)
        return self._values.item(vars(builtins), name, name, strong(vars(builtins)))

    def _variable(self, name: str) -> Found | None:
        cell = self._closures.cell_of(self._frame, name)
        if name not in self._locals:
            return None
        value = self._locals[name]
        if cell is None:
            return (name, value, ref(value)) if self._notes.is_met(value) else None
        fetch = self._closures.fetch_of(cell)
        return self._values.guard(cell, ATTRIBUTES, "cell_contents", value, name, fetch)

    def slot(self, chain: Chain) -> Slot | None:
        """The place of a global or a variable of the closure, which the code writes."""
        if chain.root is GLOBAL:
            if self._is_own(chain.name):
                return None
            return Slot.item(self._frame.f_globals, chain.name, chain.name)
        cell = self._closures.cell_of(self._frame, chain.name)
        return None if cell is None else Slot.cell(cell, chain.name)
