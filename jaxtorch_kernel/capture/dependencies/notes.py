"""The notes of one trace: what the code read, what it met, what it may change. They become the guards of its program.

The notes do not decide where to look (`steps.py` and `values.py` do). They make sure that each thing is noted once,
under the path by which it was first read:

    groups        the value of an attribute or key of an owner, the contents of a container
    checks        other questions: a tensor on the CPU, an array, the hooks of a module
    tables        parameters and buffers of modules; `hookless`, `attributes`: modules without attributes of their own
    absent        globals that would hide a builtin
    tensors, gradients, modules, optimizers      used by the code

*Met* objects are those that existed before the code ran. Objects that the code creates are no dependencies, so a chain
of reads does not begin at an argument that was not met.
"""

from __future__ import annotations

import contextlib
import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from ...base import torch_private as private
from ...programs import tracing
from ...storage.buffer import buffer_of
from ..errors import MakesParameters
from ..results import Known
from . import outside
from .effects import Effects, Written
from .fetch import Fetch
from .guard import ATTRIBUTES, CONTENTS, GONE, ITEMS, Check, Group, Guard, Table
from .guards import Guards
from .slots import Slot
from .tokens import CONTAINERS, is_plain, is_plain_container
from .trees import parts_of

Tensor = torch.Tensor

_MOST = 1 << 14  # groups of one program


class Own(NamedTuple):
    """The objects that traced code receives in place of the original ones; they are not dependencies.

    Attributes:
        namespace: a dictionary that the code runs in.
        names: there.
        tables: of modules whose tensors are lent, by identity.
    """

    namespace: dict[str, Any] | None
    names: frozenset[str]
    tables: set[int]


NOTHING = Own(None, frozenset(), set())


def said(key: Any) -> str:
    """A key of a container, as in source code; for a tensor or an object, its type."""
    return repr(key) if is_plain(key) else f"<{type(key).__name__}>"


class Notes:
    """The notes of one trace.

    Args:
        own: what the code receives, or sets itself before reading it.

    Attributes:
        effects: Python state that the code may change.
        arguments: tensors by identity -> their place among the leaves of the call.
        modules: that were called or read whole, by identity.
        tensors: that were read by name, by identity: path, weak reference.
        gradients: leaves, with their `.grad` when they were first met.
        parameters: created by the code; `made`: objects created by the code, by identity.
        names: that followed code mentions.
        words: all names in followed code, and its strings: what it writes has one of them.
        strings: constants of followed code that may be names of attributes or globals.
        uses_gradients: whether followed code may read a leaf's `.grad`, or set it.
        warned: actions of the code that a program cannot repeat: what, file, line.
        line: file and line of the user code that reads.
        direct: whether what is noted now was seen to be read (`Guard`).
    """

    def __init__(self, own: Own):
        self.own = own
        self.effects = Effects()
        self.groups: dict[Any, Group] = {}
        self.checks: dict[Any, Check] = {}
        self.tables: dict[int, Table] = {}
        self.absent: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self.hookless: list[tuple[Any, str, dict[Any, Any]]] = []  # of a module, or of all (None)
        # Of modules whose `forward` is their class's.
        self.attributes: list[tuple[Any, str, dict[str, Any]]] = []
        self.modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.arguments: dict[int, int] = {}
        self.tensors: dict[int, tuple[str, weakref.ref[Tensor]]] = {}
        self.gradients: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        self.parameters: list[weakref.ref[Tensor]] = []
        self.made: dict[int, weakref.ref[Any]] = {}
        self.warned: list[tuple[str, str, int]] = []
        self.names: set[str] = set()
        self.words: set[str] = set()
        self.strings: set[str] = set()
        self.uses_gradients = False
        self.line: tuple[str | None, int | None] = None, None
        self.direct = True
        # With the path by which each was met first. What the code makes is not held: it may hold tensors of the trace.
        self._met: dict[int, tuple[Any, str]] = {}
        self._seen: set[Any] = set()
        self._depths: dict[Any, int] = {}

    # -- what was there -------------------------------------------------------------------------------------------

    def is_first(self, key: Any) -> bool:
        """Whether this is asked for the first time: what is looked into once has a key."""
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def is_deeper(self, key: Any, depth: int) -> bool:
        """Whether this is looked into for the first time, or so many levels deep for the first time."""
        if self._depths.get(key, -1) >= depth:
            return False
        self._depths[key] = depth
        return True

    def meet(self, value: Any, path: str) -> None:
        """Note an object that existed before the code ran."""
        if id(value) not in self._met or not self._met[id(value)][1]:
            self._met[id(value)] = value, path
            if not self.is_made(value):
                self.remember(value, path)
            if isinstance(value, torch.nn.Module) and path:
                for name, child in vars(value).get("_modules", {}).items():
                    self.meet(child, f"{path}.{name}")

    def remember(self, value: Any, path: str) -> None:
        """Record the contents of an object before the code changes them. A cell tracks changes to its own names."""
        if getattr(value, "__dict__", None) is not self.own.namespace or self.own.namespace is None:
            self.effects.snapshots.take(value, path)

    def mentions(self, name: str) -> bool:
        """Whether followed code has a name in it, as such or as a string."""
        return name in self.words

    def is_met(self, value: Any) -> bool:
        """Whether an object existed before the code ran."""
        return id(value) in self._met

    def make(self, value: Any) -> None:
        """Note an object that the code creates."""
        with contextlib.suppress(TypeError):  # it can have no weak reference
            self.made[id(value)] = weakref.ref(value)

    def is_made(self, value: Any) -> bool:
        """Whether the code created an object, which is then not a dependency."""
        made = self.made.get(id(value))
        begins = isinstance(value, torch.nn.Module) and "_modules" not in vars(value)
        return begins or (made is not None and made() is value)

    def is_new_tree(self, owner: Any, kind: str, key: Any, value: Any) -> bool:
        """Whether the code bound a container of tensors that it created to this place; it is not a dependency."""
        written = self.effects.written.get((id(owner), kind, key))
        if written is None or value is written.before:
            return False
        parts, trace = parts_of(value), tracing.current()
        return (
            parts is not None
            and trace is not None
            and any(
                isinstance(leaf, Tensor)
                and leaf.device.type == "jax"
                and trace.created(buffer_of(leaf))
                for leaf in parts[0]
            )
        )

    def as_before(self, owner: Any, kind: str, key: Any, value: Any) -> Any:
        """What stood at a place: plain values in a container that the code has put another one in the place of.

        The code may have read them before. Of other containers, and of objects, this is not asked.
        """
        written = self.effects.written.get((id(owner), kind, key))
        if written is None or not is_plain_container(written.before):
            return value
        return written.before

    def path_of(self, value: Any, otherwise: str) -> str:
        """The path by which an object was first met."""
        return (self._met.get(id(value)) or (None, ""))[1] or otherwise

    def module_path(self, module: torch.nn.Module) -> str:
        """The path of a module, or the name of its class."""
        return self.path_of(module, type(module).__name__)

    def let_go(self) -> None:
        """Release the objects that were met, after the code has run."""
        self.effects.forget_replaced(
            lambda v: (self.is_met(v) and not self.is_made(v)) or id(v) in self.tensors
        )
        self._met.clear()

    # -- what is read ---------------------------------------------------------------------------------------------

    def guard(
        self, owner: Any, kind: str, key: Any, value: Any, path: str, fetch: Fetch
    ) -> tuple[Fetch, bool]:
        """Guard one value of an owner. Returns its fetch and whether the guard is new; the first guard stays."""
        place = (id(owner), kind, _owner_path(owner, kind, path))
        group = self.groups.get(place)
        if group is None:
            group = self.groups[place] = Group(fetch, kind)
            self.meet(owner, path.rpartition(".")[0])
        is_new = key not in group.keys
        if is_new:
            # What the code itself put there is nothing to depend on; what stood there before may be.
            written = self.effects.written.get((id(owner), kind, key))
            group.keys.append(key)
            before = value if written is None else written.before
            group.guards.append(Guard(path, before, self.direct))
        return group.fetch, is_new

    def contents(self, path: str, container: Any, fetch: Fetch) -> list[tuple[Any, Any]]:
        """Guard what a container holds: (key, element) of each."""
        is_map = isinstance(container, dict | types.MappingProxyType)
        held = self.effects.before(container)
        elements = list(held.values()) if is_map else list(held)
        keys = list(held) if is_map else list(range(len(elements)))
        found = list(zip(keys, elements, strict=True))
        # One container in two places may be two later.
        place = (id(container), CONTENTS, path)
        if place in self.groups:
            return found
        if len(self.groups) > _MOST:
            self.warn(f"reads more than {_MOST} objects", *self.line)
            return []
        group = self.groups[place] = Group(fetch, CONTENTS)
        self.meet(container, path)
        self.effects.contain(path, container, fetch, self.line)
        group.keys.append(type)
        group.guards.append(Guard(path, type(container)))
        if is_map:
            group.guards += [Guard(f"{path} (its key {said(k)})", k) for k in keys]
        group.guards += [Guard(f"{path}[{said(key)}]", value) for key, value in found]
        return found

    def table(self, path: str, module: torch.nn.Module, table: dict[str, Any]) -> None:
        """A module's table of tensors is read: all of it is guarded, at once."""
        if id(table) not in self.tables and id(table) not in self.own.tables:
            values = [v for v in table.values() if isinstance(v, Tensor)]
            for name, value in table.items():
                if isinstance(value, Tensor):
                    self.tensor(f"{path}.{name}", value)
            if not any(map(private.is_wrapped, values)):
                self.tables[id(table)] = Table(path, module, table)

    def tensor(self, path: str, value: Tensor) -> None:
        """Note a tensor that is read by name, unless its values were computed by the trace."""
        trace = tracing.current()
        if is_lazy(value):  # which becomes another one in place
            raise MakesParameters(path, *self.line)
        if private.is_wrapped(value):  # a transform's, put there by `functional_call`
            return
        if value.device.type == "jax" and trace is not None and trace.created(buffer_of(value)):
            return
        if id(value) not in self.tensors:
            self.effects.watch(path, value)
            self.tensors[id(value)] = path, weakref.ref(value)
            if value.is_leaf:
                self.gradients.setdefault(id(value), (weakref.ref(value), value.grad))
        if value.device.type != "jax" and id(value) not in self.checks:
            self.checks[id(value)] = outside.unwritten(path, value)

    def optimizer(self, optimizer: torch.optim.Optimizer, path: str = "") -> None:
        """An optimizer is used: its parameters are read."""
        if id(optimizer) not in self.optimizers:
            self.optimizers[id(optimizer)] = optimizer
            for i, group in enumerate(optimizer.param_groups):
                for j, p in enumerate(group["params"]):
                    where = path or type(optimizer).__name__
                    self.tensor(f"{where}.param_groups[{i}]['params'][{j}]", p)

    def check(self, value: Any, check: Check) -> None:
        """Add a check of an object before each run."""
        self.checks.setdefault(id(value), check)
        self.meet(value, check.path)

    def holds_new_parameters(self, value: Any) -> bool:
        """Whether a value is a parameter that the code created, or a module with one."""
        if not self.parameters or not isinstance(value, Tensor | torch.nn.Module):
            return False
        found = [value] if isinstance(value, Tensor) else list(value.parameters())
        return any(reference() is p for reference in self.parameters for p in found)

    def warn(self, what: str, file: str | None, line: int | None) -> None:
        """Note that the code does something that a program cannot repeat."""
        found = what, file or "", line or 0
        if found not in self.warned:
            self.warned.append(found)

    # -- afterwards -----------------------------------------------------------------------------------------------

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

    def reads(self, slot: Slot) -> bool:
        """Whether the code reads the value of a place that it writes."""
        return any(slot.key in group.keys for group in self._groups_of(slot))

    def expect_before(self, written: Written) -> None:
        """Require a slot that the code writes to have its previous value before a run."""
        slot = written.slot
        if written.replaced or (
            isinstance(written.before, CONTAINERS) and not is_plain(written.before)
        ):
            # A guard asks for what it holds, not whether it is this one.
            self.checks[written] = Check(slot.path, "is a different container", lambda: False)
        if self.reads(slot):
            return
        owner, kind, key = slot.place
        place = owner, kind, _owner_path(slot.owner(), kind, slot.path)
        if place not in self.groups:
            self.groups[place] = Group(slot.owner, kind)
        self.groups[place].keys.append(key)
        self.groups[place].guards.append(Guard(slot.path, written.before))

    def drop(self, slot: Slot) -> None:
        """Drop the guards of a place."""
        for group in self._groups_of(slot):
            if slot.key in group.keys:
                i = group.keys.index(slot.key)
                del group.keys[i], group.guards[i]

    def drop_tree(self, slot: Slot, containers: set[int]) -> None:
        """Drop the guards of a place and of the containers that were read there."""
        self.drop(slot)
        for place, group in list(self.groups.items()):
            paths = [guard.path for guard in group.guards]
            if place[0] in containers and all(path.startswith(slot.path) for path in paths):
                del self.groups[place]

    def expects(self, tensor: Tensor) -> bool:
        """Whether a guard expects this very tensor at some place."""
        tables = (t.guards for t in self.tables.values())
        groups = (g.guards for g in self.groups.values())
        guards = itertools.chain.from_iterable(itertools.chain(tables, groups))
        return any(isinstance(g.value, weakref.ref) and g.value() is tensor for g in guards)

    def _groups_of(self, slot: Slot) -> list[Group]:
        owner, kind, _ = slot.place
        return [group for place, group in self.groups.items() if place[:2] == (owner, kind)]

    def _in_two_places(self) -> Iterator[Check]:
        """Of the containers that the code reached by several paths, to read or to write them."""
        places: dict[Any, dict[str, Callable[[], Any]]] = {}
        for (owner, kind, _), group in self.groups.items():
            if kind != ATTRIBUTES and group.guards and _is_there(group):
                path = group.guards[0].path
                where = _owner_path(group.fetch(), kind, path) or path
                places.setdefault(owner, {}).setdefault(where, group.fetch)
        for written in self.effects.written.values():
            slot = written.slot
            owner = slot.owner()
            if isinstance(owner, CONTAINERS) and id(owner) in places:
                where = _owner_path(owner, ITEMS, slot.path) or slot.path
                places[id(owner)].setdefault(where, slot.owner)
        return (_is_one(found) for found in places.values() if len(found) > 1)

    def finish(self) -> Guards:
        """The guards."""
        self._seen.clear()
        self._depths.clear()
        for check in self._in_two_places():
            self.checks[id(check)] = check
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


def _owner_path(owner: Any, kind: str, path: str) -> str:
    """The path of an item's container: this may stand in two places and be two later, so that each has guards."""
    return path.rpartition("[")[0] if kind == ITEMS and isinstance(owner, CONTAINERS) else ""


def _is_one(places: dict[str, Callable[[], Any]]) -> Check:
    """A check that a container found in several places is still a single object."""

    def holds() -> bool:
        try:
            return len({id(fetch()) for fetch in places.values()}) == 1
        except GONE:
            return False

    first, second, *_ = places
    return Check(first, f"is no longer the same object as {second}", holds)


def _is_there(group: Group) -> bool:
    try:
        return group.fetch() is not None
    except (AttributeError, KeyError, IndexError, TypeError, ReferenceError):
        return False
