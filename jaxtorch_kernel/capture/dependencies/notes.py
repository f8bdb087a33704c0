"""The notes of one trace: what the code read, what existed before, what the code may change.

The notes become the guards of the program. They do not decide where to look (`steps.py` and `values.py` do). They make
sure that each value is noted once, under the path by which it was first read:

    groups        the value of an attribute or key of an owner, the contents of a container
    checks        other conditions: on a CPU tensor, an array, the hooks of a module
    tables        parameters and buffers of modules; `empty_hooks`: tables of hooks without user hooks;
                  `class_forwards`: modules whose `forward` comes from the class
    absent        globals that would hide a builtin
    tensors, gradients, modules, optimizers      used by the code

Objects that the code creates are not dependencies. So *preexisting* objects, those that existed before the code ran,
are noted too: a chain of reads begins only at an argument that is one of them.
"""

from __future__ import annotations

import contextvars
import itertools
import types
import weakref
from collections import deque
from collections.abc import Hashable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ...base import torch_private as private
from ...programs import tracing
from ...programs.trees import is_device_tensor
from ...storage.buffer import buffer_of
from ..errors import MakesParameters
from ..results import Known
from . import outside
from .effects import Assignment, Effects, Line
from .excluded import Excluded
from .fetch import Fetch, fetched
from .followed import is_list_of_parameters
from .guard import CONTENTS, Check, Group, Guard, Hooks, TensorTable
from .guards import Guards
from .identities import container_path, identity_checks
from .labels import Labels
from .objects import Objects
from .slots import Slot
from .tokens import CONTAINERS, is_plain, items_of

Tensor = torch.Tensor

_MAX_GROUPS = 1 << 14  # of one program


def key_text(key: object) -> str:
    """A key of a container, as in source code; for a tensor or an object, its type."""
    return repr(key) if is_plain(key) else f"<{type(key).__name__}>"


class Notes:
    """The notes of one trace.

    Args:
        excluded: what the code receives, or sets itself before reading it.

    Attributes:
        context: the context variables before the code runs.
        effects: Python state that the code may change.
        arguments: tensors by identity -> their index among the leaves of the call.
        modules: that were called or read whole, by identity.
        tensors: that were read by name, by identity: path, weak reference.
        gradients: leaves, with their `.grad` when the code first reached them.
        labels: the names of what the code read, once it has run.
        parameters: created by the code.
        objects: which objects existed before, and which the code creates.
        names: that followed code reads.
        identifiers: all names in followed code, and its strings: what the code writes has one of them.
        strings: constants of followed code that may be names of attributes or globals.
        texts: strings among the values that the code reads, which may be such names too.
        uses_gradients: whether followed code may read a leaf's `.grad`, or set it.
        warned: actions of the code that a program cannot repeat: what, file, line.
        line: the line of user code that reads.
        direct: whether the code was seen to read what is noted now (`Guard`).
    """

    def __init__(self, excluded: Excluded):
        self.excluded = excluded
        self.context = contextvars.copy_context()
        self.effects = Effects()
        self.objects = Objects(self.effects, excluded.namespace)
        self.groups: dict[tuple[int, str, str], Group] = {}
        self.checks: dict[Hashable, Check] = {}
        self.tables: dict[int, TensorTable] = {}
        self.absent: dict[int, tuple[dict[str, object], set[str]]] = {}
        # A reference to the module (None for the hooks of all modules), the path, the table.
        self.empty_hooks: list[tuple[weakref.ref[torch.nn.Module] | None, str, Hooks]] = []
        # A reference to the module, its path, its attributes.
        self.class_forwards: list[tuple[weakref.ref[torch.nn.Module], str, dict[str, object]]] = []
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self._optimizer_paths: dict[int, str] = {}
        self.labels = Labels()
        self.arguments: dict[int, int] = {}
        self.tensors: dict[int, tuple[str, weakref.ref[Tensor]]] = {}
        self.gradients: dict[int, tuple[weakref.ref[Tensor], Tensor | None]] = {}
        self.parameters: list[weakref.ref[Tensor]] = []
        self.warned: list[tuple[str, str, int]] = []
        self.names: set[str] = set()
        self.identifiers: set[str] = set()
        self.strings: set[str] = set()
        self.texts: set[str] = set()
        self.uses_gradients = False
        self.line: Line = None, None
        self.direct = True
        self._seen: set[Hashable] = set()
        self._depths: dict[Hashable, int] = {}

    # -- preexisting and created objects --------------------------------------------------------------------------

    def is_first(self, key: Hashable) -> bool:
        """Whether this is called with the key for the first time: what is to be done once has a key."""
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def is_deeper(self, key: Hashable, depth: int) -> bool:
        """Whether this is called with the key for the first time, or for the first time with so many levels left."""
        if self._depths.get(key, -1) >= depth:
            return False
        self._depths[key] = depth
        return True

    def mentions(self, name: str) -> bool:
        """Whether followed code has a name in it, as such or as a string."""
        return name in self.identifiers

    def release(self) -> None:
        """Release the objects, after the code has run."""
        objects = self.objects
        self.effects.drop_replaced(
            lambda v: (
                (objects.is_preexisting(v) and not objects.is_created(v)) or id(v) in self.tensors
            )
        )
        optimizers = [(self._optimizer_paths[key], o) for key, o in self.optimizers.items()]
        self.labels = Labels(
            objects.release(), self.tensors.values(), optimizers, self.gradients.values()
        )

    # -- what is read ---------------------------------------------------------------------------------------------

    def guard(
        self, owner: object, kind: str, key: Any, value: object, path: str, fetch: Fetch
    ) -> tuple[Fetch, bool]:
        """Guard one value of an owner. Returns its fetch and whether the guard is new; the first guard stays.

        Args:
            value: what was there before the code ran: what the code has put there is no dependency.
        """
        key, value = _of_class(owner, key, value)
        identity = (id(owner), kind, container_path(owner, kind, path))
        group = self.groups.get(identity)
        if group is None:
            group = self.groups[identity] = Group(fetch, kind)
            self.objects.add_preexisting(owner, path.rpartition(".")[0])
        is_new = key not in group.keys
        if is_new:
            group.keys.append(key)
            group.guards.append(Guard(path, value, self.direct))
            self.add_texts(value)
        return group.fetch, is_new

    def contents(self, path: str, container: Any, fetch: Fetch) -> list[tuple[object, object]]:
        """Guard the contents of a container; returns (key, element) of each."""
        is_mutable = isinstance(container, list | dict | set | deque)
        before: Any = self.effects.before(container) if is_mutable else container
        is_map = isinstance(container, dict | types.MappingProxyType)
        items = list(items_of(before) if is_map else enumerate(before))
        # A container with two paths may be two containers later.
        identity = (id(container), CONTENTS, path)
        if identity in self.groups:
            return items
        if len(self.groups) > _MAX_GROUPS:
            self.warn(f"reads more than {_MAX_GROUPS} objects", *self.line)
            return []
        group = self.groups[identity] = Group(fetch, CONTENTS)
        self.objects.add_preexisting(container, path)
        self.effects.add_container(path, container, fetch, self.line)
        group.keys.append(type)
        group.guards.append(Guard(path, type(container)))
        if is_map:
            group.guards += [Guard(f"{path} (its key {key_text(k)})", k) for k, _ in items]
        group.guards += [Guard(f"{path}[{key_text(key)}]", value) for key, value in items]
        self.add_texts(*(part for item in items for part in item))
        return items

    def add_texts(self, *values: object) -> None:
        """Note the strings among values that the code reads."""
        self.texts.update(v for v in values if isinstance(v, str) and v.isidentifier())

    def table(self, path: str, module: torch.nn.Module, table: dict[str, Tensor | None]) -> None:
        """Guard all of a module's table of tensors."""
        if id(table) not in self.tables and id(table) not in self.excluded.tables:
            trace = tracing.current()
            stand_ins = {} if trace is None else trace.root.stand_ins
            entries = {n: v if v is None else stand_ins.get(v, v) for n, v in table.items()}
            values = [v for v in entries.values() if isinstance(v, Tensor)]
            for name, value in entries.items():
                if isinstance(value, Tensor):
                    self.tensor(f"{path}.{name}", value)
            if not any(map(private.is_wrapped, values)):
                self.tables[id(table)] = TensorTable(path, module, table, entries)

    def tensor(self, path: str, value: Tensor) -> None:
        """Note a tensor that is read by name, unless its values were computed by the trace."""
        trace = tracing.current()
        if is_lazy(value):  # it becomes a different parameter in place
            raise MakesParameters(path, *self.line)
        if private.is_wrapped(value):  # of a function transform, put there by `functional_call`
            return
        if value.device.type == "jax" and trace is not None and trace.created(buffer_of(value)):
            return
        if id(value) not in self.tensors:
            self.effects.add_tensor(path, value)
            self.tensors[id(value)] = path, weakref.ref(value)
            if value.is_leaf:
                self.gradients.setdefault(id(value), (weakref.ref(value), value.grad))
        if value.device.type != "jax" and id(value) not in self.checks:
            self.checks[id(value)] = outside.cpu_tensor_check(path, value)

    def optimizer(self, optimizer: torch.optim.Optimizer, path: str = "") -> None:
        """Note that an optimizer is used, and so its parameters are read."""
        self._optimizer_paths[id(optimizer)] = self._optimizer_paths.get(id(optimizer)) or path
        if id(optimizer) not in self.optimizers:
            self.optimizers[id(optimizer)] = optimizer
            for i, group in enumerate(optimizer.param_groups):
                for j, p in enumerate(group["params"]):
                    where = path or type(optimizer).__name__
                    self.tensor(f"{where}.param_groups[{i}]['params'][{j}]", p)

    def check(self, value: object, check: Check) -> None:
        """Add a check of an object before each run."""
        self.checks.setdefault(id(value), check)
        self.objects.add_preexisting(value, check.path)

    def contains_new_parameters(self, value: object) -> bool:
        """Whether a value is a parameter that the code created, or a module with one."""
        if not self.parameters or not isinstance(value, Tensor | torch.nn.Module):
            return False
        parameters = [value] if isinstance(value, Tensor) else list(value.parameters())
        return any(reference() is p for reference in self.parameters for p in parameters)

    def warn(self, what: str, file: str | None, line: int | None) -> None:
        """Note that the code does something that a program cannot repeat."""
        warning = what, file or "", line or 0
        if warning not in self.warned:
            self.warned.append(warning)

    # -- afterwards -----------------------------------------------------------------------------------------------

    def known(self) -> list[Known]:
        """The tensors of the device that the code read by name."""
        return [
            Known(tensor, reference)
            for _, reference in self.tensors.values()
            if is_device_tensor(tensor := reference())
        ]

    def reads_contents(self, container: object) -> bool:
        """Whether the code reads the contents of a container."""
        return any(owner == id(container) for owner, _, _ in self.groups)

    def reads(self, slot: Slot) -> bool:
        """Whether the code reads the value of a slot that it assigns."""
        keys = slot.key, f"{slot.key}.__func__"
        return any(key in group.keys for group in self._groups_of(slot) for key in keys)

    def guard_previous(self, assignment: Assignment) -> None:
        """Require a slot that the code assigns to have its previous value before a run."""
        slot, before = assignment.slot, assignment.before
        if is_list_of_parameters(slot.owner(), slot.key):
            return
        if assignment.replaced or (isinstance(before, CONTAINERS) and not is_plain(before)):
            # A guard would only compare the contents of the container, not its identity.
            check = Check(slot.path, "is a different container", lambda: False)
            self.checks[assignment] = check
        if self.reads(slot):
            return
        owner, kind, key = slot.identity
        identity = owner, kind, container_path(slot.owner(), kind, slot.path)
        if identity not in self.groups:
            self.groups[identity] = Group(slot.owner, kind)
        key, before = _of_class(slot.owner(), key, before)
        self.groups[identity].keys.append(key)
        self.groups[identity].guards.append(Guard(slot.path, before))

    def drop_guards(self, slot: Slot) -> bool:
        """Drop the guards of a slot, also those of a container's contents; returns whether there were any."""
        guarded = [group for group in self._groups_of(slot) if slot.key in group.keys]
        for group in guarded:
            i = group.keys.index(slot.key)
            del group.keys[i], group.guards[i]
        contents = id(slot.container()), CONTENTS
        elements = [g.element(slot.key) for i, g in self.groups.items() if i[:2] == contents]
        for guard in filter(None, elements):
            guard.release()
        return bool(guarded or any(elements))

    def drop_tree_guards(self, slot: Slot, containers: set[int]) -> None:
        """Drop the guards of a slot and of the containers (by identity) that were read there."""
        self.drop_guards(slot)
        for identity, group in list(self.groups.items()):
            paths = [guard.path for guard in group.guards]
            if identity[0] in containers and all(path.startswith(slot.path) for path in paths):
                del self.groups[identity]

    def guarded_tensors(self) -> set[int]:
        """The tensors of which a guard expects the very tensor, by identity."""
        tables = (t.guards for t in self.tables.values())
        groups = (g.guards for g in self.groups.values())
        guards = itertools.chain.from_iterable(itertools.chain(tables, groups))
        values = (g.value() for g in guards if isinstance(g.value, weakref.ref))
        return {id(value) for value in values if isinstance(value, Tensor)}

    def _groups_of(self, slot: Slot) -> list[Group]:
        owner, kind, _ = slot.identity
        return [group for identity, group in self.groups.items() if identity[:2] == (owner, kind)]

    def build_guards(self) -> Guards:
        """The guards of the program."""
        self._seen.clear()
        self._depths.clear()
        for check in identity_checks(self.groups, self.effects.assignments.values()):
            self.checks[id(check)] = check
        groups = []
        for group in self.groups.values():
            if group.guards and fetched(group.fetch) is not None:
                group.close()
                groups.append(group)
        return Guards(
            groups,
            list(self.checks.values()),
            [t for t in self.tables.values() if t.module() is not None],
            [(path, hooks) for m, path, hooks in self.empty_hooks if m is None or m() is not None],
            [(path, values) for m, path, values in self.class_forwards if m() is not None],
            list(self.absent.values()),
            [m for reference in self.modules.values() if (m := reference()) is not None],
        )


def _of_class(owner: object, key: object, value: object) -> tuple[object, object]:
    """A key and its value; for a method that an object has from its class, those of the function."""
    if isinstance(value, types.MethodType) and value.__self__ is owner and isinstance(key, str):
        return f"{key}.__func__", value.__func__
    return key, value
