"""What traced code reads beside tensors' data, recorded while it runs.

A profile hook of this thread sees each Python function that the code enters. For the user's code, and for libraries
built on torch, the bytecode says what a function reads (`reads.py`): its globals, the variables of its closure,
attributes of its arguments. These are looked up at once, before the function runs, so that what is noted is what the
function is about to read. Each becomes a guard. An object that a function uses in another way counts as read as a
whole: those of its attributes whose names some followed code mentions.

The code of torch (its modules excepted), JAX, NumPy, the standard library and this project is assumed not to change.
While an operator of the device runs, the hook is off (`pausing.py`).
"""

from __future__ import annotations

import builtins
import contextvars
import functools
import gc
import inspect
import os
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules import module as torch_modules

from ...dispatch import pausing, tracing
from ...dispatch.site import is_user_file
from ...storage.buffer import buffer_of
from ..errors import CaptureError
from ..modes import Modes
from ..numbers import NeedsNumber, Number
from ..results import Known
from . import outside
from .effects import Effects, Slot
from .guard import (
    ATTRIBUTES,
    CONTENTS,
    ITEMS,
    Check,
    ClosureFetch,
    Group,
    Guard,
    Table,
    users_hooks,
)
from .guards import Guards
from .reads import ARGUMENT, ATTRIBUTE, CLOSURE, GLOBAL, IMPORT, Chain, Reads, reads_of
from .tokens import CONTAINERS, MISSING, class_attributes, is_plain, is_users_class

Tensor = torch.Tensor
Fetch = Callable[[], Any]

_TORCH = os.path.dirname(torch.__file__)
_FOLLOWED_TORCH = tuple(
    os.path.join(_TORCH, *part)
    for part in (
        ("nn", "modules"),
        ("nn", "utils"),
        ("optim", "lr_scheduler"),
        ("optim", "swa_utils"),
    )
)
_NOT_FOLLOWED_NAMES = frozenset(
    (
        "torch",
        "jax",
        "jaxlib",
        "numpy",
        "torchgen",
        "IPython",
        "ipykernel",
        "_pytest",
        "pytest",
        "jaxtorch",
        "typing",
        "dataclasses",
    )
)
_NOT_FOLLOWED = tuple(
    os.path.join(os.path.dirname(_TORCH), name) + os.sep for name in _NOT_FOLLOWED_NAMES
)
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# A module's tables of hooks that its call looks into, and those of all modules.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = frozenset(vars(torch.nn.Module())) - {"training"}  # what every module has
_GLOBAL_HOOKS = tuple(
    name for name in vars(torch_modules) if name.startswith("_global_") and name.endswith("_hooks")
)
_STDLIB = os.path.dirname(os.__file__) + os.sep
_DEEPEST = 6
_MOST = 1 << 14  # groups of one program
_LARGEST = 1 << 12  # elements of a container whose elements are looked into
_call_module = torch.nn.Module._call_impl.__code__
_set_attribute = torch.nn.Module.__setattr__.__code__
_train = torch.nn.Module.train.__code__
_OPTIMIZER = frozenset(
    inspect.unwrap(getattr(torch.optim.Optimizer, name)).__code__
    for name in ("zero_grad", "_optimizer_step_code")
)
# One of these names stands in code that takes a leaf's `.grad` away.
_SETS_GRADIENTS = frozenset({"grad", "zero_grad", "setattr", "__setattr__"})
_environ_read = os._Environ.__getitem__.__code__
_module_attribute = torch.nn.Module.__getattr__.__code__
# Of a module's own methods: those that read all of its tree.
_READ_ALL = frozenset(
    inspect.unwrap(getattr(torch.nn.Module, name)).__code__
    for name in ("_named_members", "named_modules", "named_children", "state_dict", "_apply")
)


class Own(NamedTuple):
    """What traced code is handed in the place of what was there: nothing of it is a dependency.

    Attributes:
        namespace: a dictionary that the code runs in.
        names: there.
        tables: of modules whose tensors are lent, by identity.
    """

    namespace: dict[str, Any] | None
    names: frozenset[str]
    tables: set[int]


_NOTHING = Own(None, frozenset(), set())


class Recorder:
    """Notes what code reads; `finish` makes the guards.

    Args:
        function: what is traced. A cell's has an `own`: what it is handed, or sets itself before it reads it.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.own: Own = getattr(function, "own", _NOTHING)
        self.effects = Effects()
        self.groups: dict[Any, Group] = {}
        self.checks: dict[Any, Check] = {}
        self.tables: dict[int, Table] = {}
        self.absent: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self.hookless: list[
            tuple[Any, str, dict[Any, Any]]
        ] = []  # tables of modules, or of all (None)
        # Of modules whose `forward` is their class's.
        self.attributes: list[tuple[Any, str, dict[str, Any]]] = []
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}  # that were called or read whole
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.tensors: dict[int, tuple[str, weakref.ref[Tensor]]] = {}  # that were read by name
        self.arguments: dict[
            int, int
        ] = {}  # tensors by identity -> their place among the leaves of the call
        # Leaves, with their `.grad` when they were met first.
        self.gradients: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        self._trace: tracing.Trace | None = None
        self.warned: list[tuple[str, str, int]] = []
        self._names: set[str] = set()  # that followed code mentions
        # Objects that were there before the code ran, by identity. What the code makes is nothing to depend on, and is
        # not held: it may hold tensors of the trace.
        self._outer: dict[int, tuple[Any, str]] = {}  # with the path by which each was met first
        self._seen: set[Any] = set()
        self._closures: dict[int, Fetch] = {}
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._strings: set[str] = set()  # that may be names of attributes or globals
        self._has_numbers = False
        self._line: tuple[str | None, int | None] = None, None  # of the user's, that reads
        self._inner: set[types.CodeType] = set()  # code that traced code itself makes functions of
        self._waiting: list[tuple[str, Any, str, Fetch, int]] = []

    def run(self, args: Any, kwargs: Any) -> Any:
        """Call the function, watched."""
        self._trace = tracing.current()
        self._noted(self.function)
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        self._has_numbers = any(type(leaf) is Number for leaf in leaves)
        for place, leaf in enumerate(leaves):
            if type(leaf) is Number:
                continue
            if not isinstance(leaf, Tensor):
                self._meet(leaf, "")
            else:  # an input: what it is at each run is asked of the call
                self.arguments[id(leaf)] = place
                self.effects.watch("", leaf)
        self._meet(getattr(self.function, "__self__", None), "")
        modes = Modes()
        with self.watching():
            result = self.function(*args, **kwargs)
        for what in modes.restore():
            raise CaptureError(
                f"the captured code changes {what}", "Change it outside of the captured code."
            )
        self._look_into_waiting()
        self._outer.clear()
        self.effects.forget_replaced()
        for key, (reference, gradient) in self.gradients.items():
            leaf = reference()
            if leaf is not None and not self.set_gradient(leaf, gradient):
                self.gradients[key] = reference, leaf.grad
        return result

    def set_gradient(self, leaf: Tensor, before: Tensor | None) -> bool:
        """Whether the code gave a leaf another `.grad`; threads that run eagerly meanwhile do so too."""
        now = leaf.grad
        if now is before:
            return False
        if now is None:
            return bool(self.optimizers) or not _SETS_GRADIENTS.isdisjoint(
                self._names | self._strings
            )
        if now.device.type != "jax" or self._trace is None or self._trace.made(buffer_of(now)):
            return True
        known = [t for _, reference in self.tensors.values() if (t := reference()) is not None]
        known += [g for _, g in self.gradients.values() if g is not None]
        return any(t.device.type == "jax" and buffer_of(t) is buffer_of(now) for t in known)

    def give_gradients_back(self) -> None:
        """Let each leaf have the `.grad` that it had."""
        for reference, gradient in list(self.gradients.values()):
            leaf = reference()
            if leaf is not None and self.set_gradient(leaf, gradient):
                leaf.grad = gradient

    # -- the hook -----------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what the code inside reads."""
        stack = _open.recorders
        stack.append(self)
        try:
            with pausing.profiling(self._event):
                yield
        finally:
            stack.remove(self)

    def _event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            kind = _KINDS.get(code)
            if kind is None:
                kind = _KINDS[code] = _kind(frame)
            if kind is not _LIBRARY:
                kind(self, frame)
        elif event == "c_call":
            what = outside.called(arg, frame)
            if what is not None:
                self._warn(what, frame)

    def _warn(self, what: str, frame: types.FrameType | None) -> None:
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self._warn_at(what, frame.f_code.co_filename, frame.f_lineno)

    def _warn_at(self, what: str, file: str, line: int | None) -> None:
        found = what, file, line or 0
        if found not in self.warned:
            self.warned.append(found)

    # -- frames ---------------------------------------------------------------------------------------------------

    def enter_users(self, frame: types.FrameType) -> None:
        """A function of the user's begins."""
        self._enter(frame, True)

    def enter_library(self, frame: types.FrameType) -> None:
        """A function of a library begins whose own code does not change."""
        if not _open.users_only:
            self._enter(frame, False)

    def enter_getattr(self, frame: types.FrameType) -> None:
        """`Module.__getattr__`: a parameter, buffer or submodule is read by a name."""
        variables = frame.f_locals
        module, name = variables["self"], variables["name"]
        path = self.path_of(module, type(module).__name__)
        self._of_module(module, name, f"{path}.{name}")

    def _of_module(self, module: torch.nn.Module, name: str, where: str) -> Any:
        """A parameter, buffer or submodule."""
        own = vars(module)
        for table in ("_parameters", "_buffers"):
            if name in own.get(table, ()):
                if id(own[table]) in self.own.tables:
                    return None
                value = own[table][name]
                self._table(where.rpartition(".")[0], module, own[table])
                return where, value, _element(_table(_ref(module), table), name)
        if name in own.get("_modules", ()):
            return self._item(own["_modules"], name, where, _table(_ref(module), "_modules"))
        return None

    def _table(self, path: str, module: torch.nn.Module, table: dict[str, Any]) -> None:
        """A module's table of tensors is read: all of it is guarded, at once."""
        if id(table) not in self.tables and id(table) not in self.own.tables:
            self.tables[id(table)] = Table(path, module, table)
            for name, value in table.items():
                if isinstance(value, Tensor):
                    self._tensor(f"{path}.{name}", value)

    def enter_module(self, frame: types.FrameType) -> None:
        """A module is called: it has hooks or none, and a `forward` of its class or of its own."""
        self.called(frame.f_locals["self"])

    def called(self, module: torch.nn.Module) -> None:
        """A module is called, or another one in its place."""
        if (id(module), "called") in self._seen:
            return
        self._seen.add((id(module), "called"))
        self.modules[id(module)] = weakref.ref(module)
        path = self.path_of(module, type(module).__name__)
        own = vars(module)
        for name in _HOOKS:
            self._hooks(own[name], f"{path}.{name}", self.modules[id(module)])
        if "hooks of all modules" not in self._seen:
            self._seen.add("hooks of all modules")
            for name in _GLOBAL_HOOKS:
                self._hooks(vars(torch_modules)[name], name, None)
        if "forward" not in own and not own["_modules"] and not is_users_class(type(module)):
            self.attributes.append((self.modules[id(module)], path, own))
        else:
            self._attribute(module, "forward", path, _ref(module))

    def _hooks(self, hooks: dict[Any, Any], path: str, module: Any) -> None:
        users = users_hooks(hooks)
        if not users:
            self.hookless.append((module, path, hooks))  # ours are there only while code is traced
            return
        for hook in hooks.values():
            self._noted(hook)
        reference, expected = _strong(hooks), tuple(map(id, users.values()))
        self.checks[id(hooks)] = Check(
            path,
            "has other hooks",
            lambda: tuple(map(id, users_hooks(reference()).values())) == expected,
        )

    def enter_setattr(self, frame: types.FrameType) -> None:
        """`Module.__setattr__`, by an assignment or by `setattr`."""
        variables = frame.f_locals
        module, name = variables["self"], variables["name"]
        if id(module) in self.modules or id(module) in self._outer:
            path = f"{self.path_of(module, type(module).__name__)}.{name}"
            self.effects.store(Slot.attribute(module, name, path), None, "")

    def enter_train(self, frame: types.FrameType) -> None:
        """`module.train()` and `module.eval()`: the code may change the mode."""
        for module in frame.f_locals["self"].modules():
            path = f"{self.path_of(module, type(module).__name__)}.training"
            self.effects.store(Slot.attribute(module, "training", path), None, "")

    def enter_optimizer(self, frame: types.FrameType) -> None:
        """An optimizer is used."""
        self.uses(frame.f_locals["self"])

    def uses(self, optimizer: torch.optim.Optimizer, path: str = "") -> None:
        """An optimizer is used: its parameters are read."""
        if id(optimizer) not in self.optimizers:
            self.optimizers[id(optimizer)] = optimizer
            for i, group in enumerate(optimizer.param_groups):
                for j, p in enumerate(group["params"]):
                    where = path or type(optimizer).__name__
                    self._tensor(f"{where}.param_groups[{i}]['params'][{j}]", p)

    def enter_whole_module(self, frame: types.FrameType) -> None:
        """A method that reads all parts of a module."""
        module = frame.f_locals.get("self")
        caller = frame.f_back
        while caller is not None and caller.f_code in _READ_ALL:
            caller = caller.f_back
        ours = caller is not None and caller.f_code.co_filename.startswith(_OWN)
        if isinstance(module, torch.nn.Module) and not ours:
            self.whole_module(module)

    def enter_environ(self, frame: types.FrameType) -> None:
        """`os.environ[...]`."""
        variables = frame.f_locals
        environ, name = variables["self"], variables["key"]
        key = environ.encodekey(name)
        self._item(environ._data, key, f"os.environ[{name!r}]", _strong(environ._data))

    def _enter(self, frame: types.FrameType, users: bool) -> None:
        reads = reads_of(frame.f_code)
        variables = frame.f_locals
        if not self._is_new(frame, reads, variables):
            return
        self._names |= reads.names
        self._strings.update(reads.strings)
        if self._has_numbers and users and "type" in reads.names:
            raise NeedsNumber()
        self._inner.update(c for c in frame.f_code.co_consts if isinstance(c, types.CodeType))
        roots = _Roots(self, frame, variables, users)
        if users and frame.f_code.co_argcount:
            self._method(frame.f_code, variables)
        for chain in reads.chains:
            self._follow(chain, roots, reads.dynamic)
        for increment in reads.increments:
            slot = self._slot(increment.target, roots)
            if slot is not None and type(slot.get()) in (int, float):
                self.effects.count(slot)
            elif slot is not None:  # a tensor, a list: `+=` reads it
                self._follow(increment.target, roots, reads.dynamic)
                self.effects.store(slot, increment.target.line, frame.f_code.co_filename)
        for chain in reads.stores:
            slot = self._slot(chain, roots)
            if slot is not None:
                self.effects.store(slot, chain.line, frame.f_code.co_filename)

    def _is_new(self, frame: types.FrameType, reads: Reads, variables: dict[str, Any]) -> bool:
        names = {c.name for c in (*reads.chains, *reads.stores) if c.root is not GLOBAL}
        values = [id(variables.get(name)) for name in sorted(names)]
        key = frame.f_code, id(frame.f_globals), *[v if v in self._outer else 0 for v in values]
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

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
                self._of_base(base, code.co_name)
        self._meet(owner, "")

    def _of_base(self, base: type, name: str) -> Any:
        """What stands on one class under a name, whatever that is."""
        where = f"{base.__name__}.{name}"
        return self._guard(
            vars(base), ITEMS, name, vars(base)[name], where, _class_table(_ref(base))
        )

    # -- chains ---------------------------------------------------------------------------------------------------

    def _follow(self, chain: Chain, roots: _Roots, dynamic: bool) -> None:
        found = roots.find(chain)
        if found is None:
            return
        if roots.users:
            self._line = roots.file, chain.line
        path, value, fetch = found
        for kind, step in chain.steps:
            if isinstance(value, np.ndarray) or (
                isinstance(value, Tensor) and step not in vars(value)
            ):
                break
            if step == "append" and type(value) in (list, deque):
                self.effects.contain(path, value, fetch, self._line)
                return  # what it holds is not read
            known = self._step(kind, step, path, value, fetch)
            if known is None:
                break
            path, value, fetch = known
        if roots.users:
            what = outside.what_of(value)
            if what is not None:
                self._warn_at(what, roots.file, chain.line)
                return
        if outside.is_iterator(value) and (chain.root is not ARGUMENT or path != chain.name):
            outside.refuse_iterator(path, roots.file, chain.line)
        self.expect(path, value, fetch, dynamic)

    def _step(self, kind: str, step: Any, path: str, value: Any, fetch: Fetch) -> Any:
        if kind is ATTRIBUTE:
            return self._attribute(value, step, path, fetch)
        return self._item(value, step, f"{path}[{step!r}]", fetch)

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

    def _attribute(self, owner: Any, name: str, path: str, fetch: Fetch) -> Any:
        """(path, value, how to fetch it) of an attribute, guarded; None where the chain cannot go on."""
        where = f"{path}.{name}"
        if isinstance(owner, types.ModuleType):
            if not is_users_module(owner):
                if name in vars(owner):
                    return self._item(vars(owner), name, where, _strong(vars(owner)))
                value = getattr(owner, name, None)
                return None if value is None else (where, value, _strong(value))
            return self._item(vars(owner), name, where, _strong(vars(owner)))
        if isinstance(owner, type):
            return self._of_class(owner, name, where, fetch)
        own = getattr(owner, "__dict__", None)
        if name == "__dict__" and isinstance(own, dict):
            return where, own, _reader(_ref(owner), ATTRIBUTES, name)
        if isinstance(owner, torch.nn.Module) and isinstance(own, dict) and name not in own:
            known = self._of_module(owner, name, where)
            if known is not None:
                return known
        fetch = _ref(owner)
        if isinstance(own, dict) and name in own:
            getter: Any = type(owner).__getattribute__
            if getter is object.__getattribute__ and name.isidentifier():
                return self._guard(owner, ATTRIBUTES, name, own[name], where, fetch)
            return self._item(own, name, where, lambda: fetch().__dict__)
        raw = _on_class(type(owner), name)
        if isinstance(raw, types.FunctionType):
            if not is_user_file(raw.__code__.co_filename) and not isinstance(
                owner, torch.nn.Module
            ):
                return None
            return self._guard(owner, ATTRIBUTES, f"{name}.__func__", raw, where, fetch)
        if isinstance(raw, types.MemberDescriptorType):
            value = getattr(owner, name, MISSING)
            return self._guard(owner, ATTRIBUTES, name, value, where, fetch)
        if raw is MISSING:
            if hasattr(type(owner), "__getattr__") or own is None:
                return None
            return self._guard(owner, ATTRIBUTES, name, MISSING, where, fetch)
        if is_plain(raw) or isinstance(raw, CONTAINERS):
            return self._guard(owner, ATTRIBUTES, name, raw, where, fetch)
        for base in type(owner).__mro__ if is_users_class(type(owner)) else ():
            if name in vars(base):  # a property or another descriptor: its own code runs
                self._of_base(base, name)
                self._meet(raw, where)
                break
        return None

    def _of_class(self, cls: type, name: str, path: str, fetch: Fetch) -> Any:
        raw = _on_class(cls, name)
        if not is_users_class(cls):
            return None
        if name == "apply" and issubclass(cls, torch.autograd.Function):  # which finds these in C
            for part in ("forward", "backward", "setup_context", "jvp", "vmap"):
                self._of_class(cls, part, f"{path.removesuffix('apply')}{part}", fetch)
        if raw is MISSING:
            meta: Any = type(cls)
            bases = meta.__mro__ if is_users_class(meta) else ()
            for base in bases:
                if name in vars(base):
                    self._of_base(base, name)
                    return None
            return self._guard(cls, ATTRIBUTES, name, MISSING, path, fetch)
        if isinstance(raw, classmethod):
            return self._guard(cls, ATTRIBUTES, f"{name}.__func__", raw.__func__, path, fetch)
        if isinstance(raw, staticmethod):
            raw = raw.__func__
        if isinstance(raw, property | types.MemberDescriptorType):
            return None
        return self._guard(cls, ATTRIBUTES, name, raw, path, fetch)

    def _item(self, owner: Any, key: Any, path: str, fetch: Fetch) -> Any:
        if isinstance(owner, dict):
            value = owner.get(key, MISSING)
            return self._guard(owner, ITEMS, key, value, path, fetch)
        if type(owner) is tuple or isinstance(owner, tuple):
            try:
                value = owner[key]
            except (IndexError, TypeError):
                return None
            return path, value, lambda: fetch()[key]
        if type(owner) in (list, deque) and isinstance(key, int):
            if not -len(owner) <= key < len(owner):
                return None
            return self._guard(owner, ITEMS, key, owner[key], path, fetch)
        return None

    def _guard(self, owner: Any, kind: str, key: Any, value: Any, path: str, fetch: Fetch) -> Any:
        """Guard one value of an owner; what was noted first stays."""
        # A container may stand in two places, and be two later: each place has its own guard.
        place = (id(owner), kind, path if isinstance(owner, list) else "")
        group = self.groups.get(place)
        if group is None:
            group = self.groups[place] = Group(fetch, kind)
            self._meet(owner, path.rpartition(".")[0])
        if key not in group.keys:
            group.keys.append(key)
            group.guards.append(Guard(path, value))
            self._noted(value)
            if isinstance(value, Tensor):
                self._tensor(path, value)
            elif isinstance(value, types.FunctionType):
                self._function(path, value, _reader(group.fetch, kind, key))
        if value is MISSING:
            return None
        if not isinstance(value, Tensor):
            self._meet(value, path)
        return path, value, _reader(group.fetch, kind, key)

    # -- values ---------------------------------------------------------------------------------------------------

    def expect(
        self,
        path: str,
        value: Any,
        fetch: Fetch,
        dynamic: bool = False,
        depth: int = _DEEPEST,
    ) -> None:
        """A value was read, and may be used in any way."""
        if is_plain(value) or isinstance(
            value, torch.nn.Module | types.FunctionType | types.ModuleType
        ):
            if dynamic and isinstance(value, types.ModuleType):
                for name in self._strings:
                    self._item(vars(value), name, f"{path}.{name}", _strong(vars(value)))
            return  # what a function or a module reads is seen when it runs
        if isinstance(value, Tensor):
            self._tensor(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            self.uses(value, path)
        elif isinstance(value, CONTAINERS):
            self._container(path, value, fetch, dynamic, depth)
        elif outside.is_iterator(value):
            return
        elif names := outside.names_asked(value):
            self._names.update(names)
        elif isinstance(value, weakref.ref):
            target = value()
            if target is not None:
                self.expect(f"{path}()", target, value, dynamic, depth)
        elif isinstance(value, contextvars.ContextVar):
            self._check(value, outside.context_variable(path, value))
        elif isinstance(value, types.BuiltinFunctionType):
            if value in outside.ASKED:
                self._check(value, outside.asked_again(path, value))
        elif type(value).__module__ in outside.SHARED:
            if isinstance(value, threading.Event):
                self._check(value, outside.asked_again(f"{path}.is_set", value.is_set))
        elif isinstance(value, functools.partial):
            self._partial(path, value, fetch, dynamic, depth)
        elif isinstance(value, types.MethodType):
            self.expect(f"{path}.__self__", value.__self__, _ref(value.__self__), dynamic, depth)
        elif outside.is_array(value):
            self._check(value, outside.unchanged_array(path, value))
        elif isinstance(value, type):
            if is_users_class(value):
                names = [name for name, _ in class_attributes(value)]
                for name in [*names, *self._strings] if dynamic else ():
                    self._of_class(value, name, f"{path}.{name}", fetch)
        elif depth and _has_attributes(value) and (id(value), "deep") not in self._seen:
            self._seen.add((id(value), "deep"))
            self._meet(value, path)
            whole = dynamic or _is_stdlib(type(value))
            if dynamic and isinstance(own := getattr(value, "__dict__", None), dict):
                self._container(
                    f"{path}.__dict__", own, _reader(_ref(value), ATTRIBUTES, "__dict__"), False, 0
                )
            for name in dict.fromkeys(
                [*_attribute_names(value), *(self._strings if dynamic else ())]
            ):
                where = f"{path}.{name}"
                if whole or name in self._names:
                    self._deep(where, value, name, fetch, depth)
                else:
                    self._waiting.append((path, value, name, fetch, depth))

    def _deep(self, where: str, owner: Any, name: str, fetch: Fetch, depth: int) -> None:
        known = self._attribute(owner, name, where[: -len(name) - 1], fetch)
        if known is not None:
            path, value, fetch = known
            self.expect(path, value, fetch, depth=depth - 1)

    def _partial(self, path: str, value: Any, fetch: Fetch, dynamic: bool, depth: int) -> None:
        self._noted(value.func)
        self._container(
            f"{path}.keywords", value.keywords, _reader(fetch, ATTRIBUTES, "keywords"), False, 1
        )
        for i, part in enumerate((value.func, *value.args, *value.keywords.values())):
            self.expect(f"{path}[{i}]", part, _strong(part), dynamic, depth - 1)

    def _function(self, path: str, function: types.FunctionType, fetch: Fetch) -> None:
        """A function that may be called: its code and its defaults can be exchanged in place."""
        file = function.__code__.co_filename
        if is_user_file(file):
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                value = getattr(function, name)
                self._guard(function, ATTRIBUTES, name, value, f"{path}.{name}", fetch)
                if isinstance(value, tuple | dict) and not is_plain(value):
                    self._container(
                        f"{path}.{name}", value, _reader(fetch, ATTRIBUTES, name), False, 2
                    )
        elif file.startswith(_STDLIB) and "site-packages" not in file:
            for cell in (
                function.__closure__ or ()
            ):  # `functools.wraps`, `singledispatch`: made of the user's
                inner = _contents_of(cell)
                self._noted(inner)
                if isinstance(inner, types.FunctionType) and inner is not function:
                    self._function(path, inner, _contents_fetch(cell))
                else:
                    self.expect(path, inner, _contents_fetch(cell), depth=2)

    def _noted(self, value: Any) -> None:
        """A function that may run: it says which variables its closure has."""
        value = value.__func__ if isinstance(value, types.MethodType) else value
        if not isinstance(value, types.FunctionType):
            return
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            if not is_plain(default) and id(default) not in self._outer:
                self._meet(default, "")
                self.expect(f"{value.__name__}.__defaults__", default, _ref(default))
        if value.__closure__:
            known = self._functions.setdefault(value.__code__, [])
            if value not in known:
                known.append(value)

    def variable_of(self, frame: types.FrameType, name: str) -> Any:
        """The closure's variable that a running function reads; None for a function that the traced code made."""
        code = frame.f_code
        if code in self._inner:
            return None
        place = code.co_freevars.index(name)
        functions = self._functions.get(code)
        if functions is None:
            referrers = gc.get_referrers(code)
            functions = [
                f for f in referrers if isinstance(f, types.FunctionType) and f.__code__ is code
            ]
            self._functions[code] = functions
        here = frame.f_locals.get(name, MISSING)
        for function in functions:
            cell = (function.__closure__ or ())[place]
            if _contents_of(cell) is here:
                self._closures[id(cell)] = ClosureFetch(function, place)
                return cell
        return None

    def closure_of(self, cell: Any) -> Fetch:
        """How the variable is found again."""
        return self._closures[id(cell)]

    def _meet(self, value: Any, path: str) -> None:
        """An object that was there before the code ran."""
        if id(value) not in self._outer or not self._outer[id(value)][1]:
            self._outer[id(value)] = value, path
            if isinstance(value, torch.nn.Module) and path:
                for name, child in vars(value).get("_modules", {}).items():
                    self._meet(child, f"{path}.{name}")

    def path_of(self, value: Any, otherwise: str) -> str:
        """The path by which an object was met."""
        return (self._outer.get(id(value)) or (None, ""))[1] or otherwise

    def _tensor(self, path: str, value: Tensor) -> None:
        trace = tracing.current()
        if value.device.type == "jax" and trace is not None and trace.made(buffer_of(value)):
            return
        if id(value) not in self.tensors:
            self.effects.watch(path, value)
            self.tensors[id(value)] = path, weakref.ref(value)
            if value.is_leaf:
                self.gradients.setdefault(id(value), (weakref.ref(value), value.grad))
        if value.device.type != "jax" and id(value) not in self.checks:
            self.checks[id(value)] = outside.unwritten(path, value)

    def _container(self, path: str, value: Any, fetch: Fetch, dynamic: bool, depth: int) -> None:
        # One container in two places may be two later.
        place = (id(value), CONTENTS, path)
        if place in self.groups or len(self.groups) > _MOST:
            return
        group = self.groups[place] = Group(fetch, CONTENTS)
        self._meet(value, path)
        self.effects.contain(path, value, fetch, self._line)
        is_map = isinstance(value, dict | types.MappingProxyType)
        elements = list(value.values()) if is_map else list(value)
        if isinstance(value, set | frozenset):
            elements = sorted(value, key=id)
        keys = list(value) if is_map else list(range(len(elements)))
        group.keys.append(type)
        group.guards.append(Guard(path, type(value)))
        if is_map:
            group.guards += [Guard(f"{path} (its key {k!r})", k) for k in keys]
        for key, element in zip(keys, elements, strict=True):
            group.guards.append(Guard(f"{path}[{key!r}]", element))
        if depth and len(elements) <= _LARGEST and not isinstance(value, set | frozenset):
            for key, element in zip(keys, elements, strict=True):
                if not is_plain(element):
                    where = f"{path}[{key!r}]"
                    self.expect(where, element, _element(fetch, key), dynamic, depth - 1)

    def _check(self, value: Any, check: Check) -> None:
        self.checks.setdefault(id(value), check)
        self._meet(value, check.path)

    def whole_module(self, module: torch.nn.Module) -> None:
        """All of a module's tree is read."""
        if (id(module), "whole") in self._seen:
            return
        self._seen.add((id(module), "whole"))
        self.modules[id(module)] = weakref.ref(module)
        path = self.path_of(module, type(module).__name__)
        own = vars(module)
        self._table(path, module, own["_parameters"])
        self._table(path, module, own["_buffers"])
        children = _table(_ref(module), "_modules")
        self._container(f"{path}._modules", own["_modules"], children, False, 0)
        for child in own["_modules"].values():
            if child is not None:
                self.whole_module(child)

    def settings(self, path: str, module: torch.nn.Module) -> None:
        """A module's attributes are read, if code mentions them: of a layer whose own code does not run."""
        for name in vars(module):
            if name not in _TABLES:
                self._waiting.append((path, module, name, _ref(module), 1))

    # -- the end --------------------------------------------------------------------------------------------------

    def _look_into_waiting(self) -> None:
        """All names that the code mentions are known now."""
        while self._waiting:
            path, owner, name, fetch, depth = self._waiting.pop()
            if name in self._names:
                self._deep(f"{path}.{name}", owner, name, fetch, depth)

    def finish(self) -> Guards:
        """The guards."""
        self._seen.clear()
        groups = []
        for group in self.groups.values():
            if group.guards and _is_there(group):
                group.close()
                groups.append(group)
        return Guards(
            groups,
            list(self.checks.values()),
            [t for t in self.tables.values() if t.module() is not None],
            [(path, hooks) for m, path, hooks in self.hookless if m is None or m() is not None],
            [(path, own) for module, path, own in self.attributes if module() is not None],
            list(self.absent.values()),
            [m for reference in self.modules.values() if (m := reference()) is not None],
        )

    def known(self) -> list[Known]:
        """The tensors of the device that the code read by name."""
        return [
            Known(tensor, reference)
            for _, reference in self.tensors.values()
            if (tensor := reference()) is not None and tensor.device.type == "jax"
        ]

    def reads_contents(self, container: Any) -> bool:
        """Whether the code reads what a container holds."""
        return any(key[0] == id(container) for key in self.groups)

    def reads(self, place: tuple[int, str, Any]) -> bool:
        """Whether the code reads what stands at a place that it writes."""
        group = self.groups.get((*place[:2], ""))
        return group is not None and place[2] in group.keys

    def drop(self, place: tuple[int, str, Any]) -> None:
        """Forget the guard of a place."""
        group = self.groups.get((*place[:2], ""))
        if group is not None and place[2] in group.keys:
            i = group.keys.index(place[2])
            del group.keys[i], group.guards[i]


class _Open(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.users_only = 0  # how many calls of `users_only` are open


_open = _Open()


@contextmanager
def users_only() -> Iterator[None]:
    """Follow only the user's own code: the libraries under a JAX function keep caches that change at each call."""
    _open.users_only += 1
    try:
        yield
    finally:
        _open.users_only -= 1


def read_whole(module: torch.nn.Module) -> None:
    """Say that the code that is being traced in this thread reads all of a module, without a call of it."""
    for recorder in _open.recorders:
        recorder.whole_module(module)
        for path, part in module.named_modules(prefix=recorder.path_of(module, "")):
            recorder.called(part)
            recorder.settings(path or type(module).__name__, part)


def handed_over(function: Any) -> None:
    """Say that a function is an input of the code that is being traced in this thread, with its closure.

    Whose variables hold other values at another call, and are no dependencies. What the objects in them hold is one.
    """
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return
    for recorder in _open.recorders:
        recorder._inner.add(function.__code__)
        for inner, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if not isinstance(value := _contents_of(cell), Tensor):
                recorder._meet(value, inner)


_ALWAYS_OUTER = (torch.nn.Module, torch.optim.Optimizer)


class _Roots:
    """Where the chains of one frame begin."""

    def __init__(
        self, recorder: Recorder, frame: types.FrameType, variables: dict[str, Any], users: bool
    ):
        self.recorder = recorder
        self.frame = frame
        self.variables = variables
        self.users = users
        self.file = frame.f_code.co_filename

    def find(self, chain: Chain) -> Any:
        """(path, value, how to fetch it) of a chain's root, guarded."""
        name = chain.name
        if chain.root is ARGUMENT:
            value = self.variables.get(name)
            if type(value) is Number or is_plain(value):
                return None
            if id(value) not in self.recorder._outer and not isinstance(value, _ALWAYS_OUTER):
                return None
            return self.recorder.path_of(value, name), value, _ref(value)
        if chain.root is CLOSURE:
            return self._variable(name)
        if chain.root is IMPORT:
            module = sys.modules.get(name)
            return None if module is None else (name, module, _strong(module))
        return self._global(name)

    def _global(self, name: str) -> Any:
        table = self.frame.f_globals
        recorder = self.recorder
        if table is recorder.own.namespace and name in recorder.own.names:
            return None  # what the code sets itself
        if name not in table:
            return self._builtin(name, table)
        value = table[name]
        if not self.users and (callable(value) or isinstance(value, types.ModuleType)):
            return None  # an installed library does not change
        return recorder._item(table, name, name, _strong(table))

    def _builtin(self, name: str, table: dict[str, Any]) -> Any:
        if not self.users:
            return None
        self.recorder.absent.setdefault(id(table), (table, set()))[1].add(name)
        if name == "globals":
            for string in reads_of(self.frame.f_code).strings:
                if string in table:
                    found = self._global(string)
                    if found is not None:
                        self.recorder.expect(*found)
        return self.recorder._item(vars(builtins), name, name, _strong(vars(builtins)))

    def _variable(self, name: str) -> Any:
        cell = self._cell(name)
        if name not in self.variables:
            return None
        value = self.variables[name]
        if cell is None:
            return (name, value, _ref(value)) if id(value) in self.recorder._outer else None
        fetch = self.recorder.closure_of(cell)
        return self.recorder._guard(cell, ATTRIBUTES, "cell_contents", value, name, fetch)

    def _cell(self, name: str) -> Any:
        return self.recorder.variable_of(self.frame, name)

    def slot(self, chain: Chain) -> Slot | None:
        if chain.root is GLOBAL:
            own = self.recorder.own
            if self.frame.f_globals is own.namespace and chain.name in own.names:
                return None
            return Slot.item(self.frame.f_globals, chain.name, chain.name)
        cell = self._cell(chain.name)
        return None if cell is None else Slot.cell(cell, chain.name)


# -- which code is followed -------------------------------------------------------------------------------------


def _kind(frame: types.FrameType) -> Any:
    """What to do when a function begins."""
    code = frame.f_code
    if code in _READ_ALL:
        return Recorder.enter_whole_module
    if any(getattr(callback, "__code__", None) is code for callback in gc.callbacks):
        return _LIBRARY  # it runs at any moment
    if code is _module_attribute:
        return Recorder.enter_getattr
    if code is _call_module:
        return Recorder.enter_module
    if code is _set_attribute:
        return Recorder.enter_setattr
    if code is _train:
        return Recorder.enter_train
    if code in _OPTIMIZER:
        return Recorder.enter_optimizer
    if code is _environ_read:
        return Recorder.enter_environ
    if code is torch.utils.data.DataLoader.__iter__.__code__:
        return _refuse_loader
    file = code.co_filename
    if file.startswith("<frozen"):
        return _LIBRARY
    if file.startswith("<"):  # made from text: a dataclass's method, a cell of a plain shell
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] in _NOT_FOLLOWED_NAMES:
            return _LIBRARY
        module = sys.modules.get(name)
        users = module is None or is_users_module(module)
        return Recorder.enter_users if users else Recorder.enter_library
    if is_user_file(file):
        return Recorder.enter_users
    if file == torch_modules.__file__:
        return _LIBRARY
    if file.startswith(_FOLLOWED_TORCH) or (
        "site-packages" in file and not file.startswith(_NOT_FOLLOWED)
    ):
        return Recorder.enter_library
    return _LIBRARY


def _refuse_loader(recorder: Recorder, frame: types.FrameType) -> None:
    while frame.f_back is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    raise CaptureError(
        "captured code loops over a DataLoader, which it would do once, when it is traced",
        "Loop outside, and pass each batch.",
        frame.f_code.co_filename,
        frame.f_lineno,
    )


_LIBRARY = object()
_KINDS: dict[types.CodeType, Any] = {}


# -- reading ------------------------------------------------------------------------------------------------------


def _strong(value: Any) -> Fetch:
    return lambda: value


def _ref(value: Any) -> Fetch:
    try:
        return weakref.ref(value)
    except TypeError:
        return _strong(value)


def _table(module: Fetch, table: str) -> Fetch:
    return lambda: module().__dict__[table]


def _element(fetch: Fetch, key: Any) -> Fetch:
    return lambda: fetch()[key]


def _reader(fetch: Fetch, kind: str, key: Any) -> Fetch:
    if kind == ATTRIBUTES:
        read = attrgetter(key)
        return lambda: read(fetch())
    return lambda: fetch()[key]


def _contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _on_class(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


def is_users_module(module: types.ModuleType) -> bool:
    """Whether a Python module is the user's own."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ not in sys.builtin_module_names and not hasattr(module, "__path__")
    return is_user_file(file)


def _is_stdlib(cls: type) -> bool:
    return (
        cls.__module__.partition(".")[0] in sys.stdlib_module_names and cls.__module__ != "__main__"
    )


def _class_table(cls: Fetch) -> Fetch:
    return lambda: cls().__dict__


def _contents_fetch(cell: Any) -> Fetch:
    return lambda: cell.cell_contents


def _has_attributes(value: Any) -> bool:
    module = type(value).__module__.partition(".")[0]
    if module in ("torch", "jax", "jaxlib", "numpy", "jaxtorch", "builtins"):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _attribute_names(value: Any) -> list[str]:
    names = list(getattr(value, "__dict__", ()))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [n for n in dict.fromkeys(names) if n not in ("__dict__", "__weakref__")]


def _is_there(group: Group) -> bool:
    try:
        return group.fetch() is not None
    except (AttributeError, KeyError, IndexError, TypeError, ReferenceError):
        return False
