"""All guards of one program, and their check before each run.

The check has two parts. The quick check compares the identity of every object with the expected one, in a function
generated from the guards (`_quick_check`), so that a guard costs one read and one comparison. If it fails, values are
compared, which is slower; if they are equivalent, the new objects become the expected ones.

The tables of modules (parameters, buffers, hooks) are read whole, in loops that run in C.
"""

from __future__ import annotations

import keyword
import re
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import chain, repeat
from operator import call
from typing import TypeAlias

import torch

from .fetch import GONE, ClosureFetch, ModuleTable, fetched, runs_code
from .guard import (
    CONTENTS,
    ArrayCheck,
    Change,
    Check,
    Group,
    Guard,
    Hooks,
    TensorTable,
    attribute_or_missing,
    contents,
    contents_changes,
    is_void,
    item_or_missing,
    user_hooks,
)
from .reads import ATTRIBUTE, ITEM
from .tokens import MISSING, Phrase, Token, token

Tensor = torch.Tensor

# What the quick check compares: an id, or for a container its length and the ids of its elements.
Ids: TypeAlias = list[int | list[int]]
QuickCheck: TypeAlias = Callable[[Ids], bool]

_SUBMODULE = re.compile(r"\._modules\['([^']*)'\]")  # in a path; source code has `.1` instead
_values = dict.values
_has = dict.__contains__
_forward = repeat("forward")


class Guards:
    """All guards of one program. Created by `Notes.build_guards`.

    Args:
        groups, checks, tables: the guards.
        empty_hooks: (path, table) of the tables of hooks that are empty and must remain so.
        class_forwards: (path, attributes) of modules whose `forward` comes from the class: the module itself must not
            get one.
        absent: (dictionary, names that it must not get): globals that would hide a builtin.
        modules: that ran; when one dies, its references are dropped.
    """

    def __init__(
        self,
        groups: list[Group],
        checks: list[Check],
        tables: list[TensorTable],
        empty_hooks: list[tuple[str, Hooks]],
        class_forwards: list[tuple[str, dict[str, object]]],
        absent: list[tuple[dict[str, object], set[str]]],
        modules: list[torch.nn.Module],
    ):
        self.groups = groups
        self.checks = checks
        self.tables = tables
        self._filled = [t.table for t in tables if t.guards]
        # The buffers of most modules are empty tables.
        self._empty = [t.table for t in tables if not t.guards]
        self._ids = [guard.id for t in tables for guard in t.guards]
        self._hook_paths, self._forward_paths = empty_hooks, class_forwards
        self._hooks = [hooks for _, hooks in empty_hooks]
        self._attributes = [attributes for _, attributes in class_forwards]
        self._absent = [(table.__contains__, names) for table, names in absent]
        on_death = _OnDeath(self)
        self._modules = [weakref.ref(m, on_death.release) for m in modules]
        self._classes = list(map(type, modules))  # `__class__` may be assigned
        self._dead = self.gone = False
        # Nothing but the arguments is read.
        self.is_bare = not (
            groups or checks or tables or empty_hooks or class_forwards or absent or modules
        )
        self._watched: list[weakref.ref[object]] = []
        self._check: QuickCheck | None = None  # generated at the first run
        self._expected: Ids = []
        self._update_expected()

    def _update_expected(self) -> None:
        """Make the quick check compare with the objects that the guards expect now, and watch for their death."""
        on_death = _OnDeath(self)
        groups = [group for group in self.groups if not is_void(group)]
        if len(groups) < len(self.groups):
            self.groups, self._check = groups, None
        watched: list[weakref.ref[object]] = []
        for group in groups:
            if isinstance(group.fetch, ClosureFetch):
                watched.append(weakref.ref(group.fetch.function(), on_death))
            for guard in group.guards:
                if isinstance(guard.value, weakref.ref) and (value := guard.value()) is not None:
                    watched.append(weakref.ref(value, on_death))
        self._watched = watched
        self._expected = _expected(groups)

    def hold(self) -> bool:
        """Whether everything is as it was when the program was traced, or equivalent."""
        if self.is_bare:
            return True
        ids = map(id, chain.from_iterable(map(_values, self._filled)))
        if list(ids) != self._ids or any(self._empty):
            return False
        return self._is_same() or (not self.gone and self._accept_current() and self._is_same())

    def _is_same(self) -> bool:
        """Whether every object is the one that was expected."""
        # While another thread traces, this project's hooks are in the tables of all modules.
        if any(self._hooks) and any(map(user_hooks, self._hooks)):
            return False
        if self._dead or any(map(_has, self._attributes, _forward)):
            return False
        if list(map(type, map(call, self._modules))) != self._classes:
            return False
        for has, names in self._absent:
            if any(map(has, names)):
                return False
        check = self._check
        if check is None:
            check = self._check = _quick_check(self.groups)
        try:
            if not check(self._expected):
                return False
            return not self.checks or all(check.holds() for check in self.checks)
        except GONE:
            return False

    def release(self) -> None:
        """Invalidate the program and drop its references, because a module has died."""
        self.gone = self._dead = True
        self._filled, self._empty, self.tables = [], [], []
        self._hooks, self._attributes = [], []
        self._hook_paths, self._forward_paths = [], []

    def _accept_current(self) -> bool:
        """Whether all objects that differ are equivalent to the expected ones; then they are expected from now on."""
        replaced: list[tuple[Guard, object]] = []
        for group in self.groups:
            if is_void(group):
                continue
            values = group.current()
            if values is None or len(values) != len(group.guards):
                return False
            for guard, value in zip(group.guards, values, strict=True):
                if guard.is_at(value):
                    continue
                if not guard.accepts(value):
                    return False
                replaced.append((guard, value))
        for guard, value in replaced:
            guard.expect(value)
        self._dead = False
        self._update_expected()
        return True

    def arrays_hold(self) -> bool:
        """Whether the NumPy arrays that the code reads have the same contents."""
        return all(check.holds() for check in self.checks if isinstance(check, ArrayCheck))

    def changes(self) -> list[Change]:
        """The guards that fail: those of values that the code was seen to read, or else of values it may have read."""
        changes: list[Change] = []
        possible: list[Change] = []
        for group in self.groups:
            values = group.current()
            if group.kind == CONTENTS and (values is None or len(values) != len(group.guards)):
                changes += contents_changes(group)
                continue
            values = group.each_current() if values is None else values
            for guard, value in zip(group.guards, values, strict=False):
                if not guard.is_at(value) and not guard.accepts(value):
                    change = Change(guard.path, guard.expected, token(value))
                    target = changes if guard.direct else possible
                    target += self._closure_changes(guard.path, value) or [change]
        changes = changes or possible
        for table in self.tables:
            changes += table.changes()
        for path, hooks in self._hook_paths:
            changes += [
                Change(f"{path}[{key}]", None, Phrase("is new")) for key in user_hooks(hooks)
            ]
        for path, attributes in self._forward_paths:
            if "forward" in attributes:
                changes.append(Change(f"{path}.forward", None, Phrase("is new")))
        for reference, cls in zip(self._modules, self._classes, strict=True):
            module = reference()
            if module is not None and type(module) is not cls:
                changes.append(Change("a module's class", cls.__name__, type(module).__name__))
        for has, names in self._absent:
            changes += [Change(name, "builtin", "new") for name in names if has(name)]
        changes += [Change(c.path, None, Phrase(c.what)) for c in self.checks if not c.holds()]
        if self.gone and not changes:
            changes.append(Change("a module that it called", "there", None))
        return [change._replace(path=_SUBMODULE.sub(r".\1", change.path)) for change in changes]

    def _closure_changes(self, path: str, function: object) -> list[Change]:
        """The differences in the closure of a function that replaced another one with the same code."""
        if not isinstance(function, types.FunctionType):
            return []
        changes = []
        for group in self.groups:
            fetch = group.fetch
            if isinstance(fetch, ClosureFetch) and fetch.code is function.__code__:
                cell = (function.__closure__ or ())[fetch.index]
                (guard,) = group.guards
                if not guard.accepts(cell.cell_contents):
                    name = f"{path}.{guard.path}"
                    changes.append(Change(name, guard.expected, token(cell.cell_contents)))
        return changes

    def state(self) -> dict[str, Token]:
        """path -> the expected token."""
        guards = [g for group in self.groups for g in group.guards]
        guards += [g for table in self.tables for g in table.guards]
        return {g.path: g.expected for g in guards}


class _OnDeath:
    """The callback of weak references: when an expected object dies, the values have to be compared again.

    It holds the Guards weakly.
    """

    __slots__ = ("guards",)

    def __init__(self, guards: Guards):
        self.guards = weakref.ref(guards)

    def __call__(self, _: object) -> None:
        guards = self.guards()
        if guards is not None:
            guards._dead = True

    def release(self, _: object) -> None:
        guards = self.guards()
        if guards is not None:
            guards.release()


def _expected(groups: list[Group]) -> Ids:
    """What `_quick_check` compares with: the identity of each object; for a container, its length and elements."""
    expected: Ids = []
    for group in groups:
        if group.absent:
            pairs = zip(group.keys, group.guards, strict=True)
            ids = [g.id for key, g in pairs if g.id is not None and key not in group.absent]
        else:
            ids = [guard.id for guard in group.guards if guard.id is not None]
        if group.kind == CONTENTS:
            expected.append([len(group.guards), *ids])
        else:
            expected += ids
    return expected


def _quick_check(groups: list[Group]) -> QuickCheck:
    """Generate the function that reads everything that the guards are about, and compares it with `_expected(groups)`.

    For two attributes and a global its source is

        def check(expected):
            owner = fetch0()
            if id(owner.scale) != expected[0] or id(owner.shift) != expected[1]: return False
            owner = fetch1()
            if id(owner[key1_0]) != expected[2]: return False
            return True
    """
    names: dict[str, object] = {
        "attribute_or_missing": attribute_or_missing,
        "item_or_missing": item_or_missing,
        "attribute": getattr,
        "elements": _elements,
    }
    contents_groups = {_table_of(g): g for g in groups if g.kind == CONTENTS}
    lines = ["def check(expected):"]
    index = 0
    classes: dict[type, set[str]] = {}  # -> names that none of its bases may get
    for i, group in enumerate(groups):
        comparisons = []
        careful = runs_code(fetched(group.fetch))
        if group.absent:
            owner = group.fetch()
            classes.setdefault(type(owner), set()).update(group.absent)
            names[f"absent{i}"] = group.absent.isdisjoint
            tables = ["__dict__"]
            if isinstance(owner, torch.nn.Module):
                tables += ["_parameters", "_buffers", "_modules"]
            comparisons = [f"not absent{i}(owner.{table})" for table in tables]
        for j, (key, guard) in enumerate(zip(group.keys, group.guards, strict=False)):
            if group.kind == CONTENTS:
                names[f"chosen{i}"] = [k for k, g in enumerate(group.guards) if g.id is not None]
                read = _read_contents(group) or f"elements(owner, chosen{i})"
            elif guard.id is None or key in group.absent:
                continue  # only its contents matter, which have a group of their own
            else:
                name = f"key{i}_{j}"
                names[name] = key
                if group.kind == ITEM and careful:
                    read = f"id(item_or_missing(owner, {name}))"
                else:
                    read = f"id({_read(group.kind, key, name, guard.id == id(MISSING))})"
            comparisons.append(f"{read} != expected[{index}]")
            index += 1
        if comparisons and not _is_covered(group, contents_groups.get(_table_of(group))):
            names[f"fetch{i}"] = group.fetch
            lines += [
                f"    owner = fetch{i}()",
                f"    if {' or '.join(comparisons)}: return False",
            ]
    for i, (cls, absent) in enumerate(classes.items()):
        names[f"of_class{i}"] = absent.isdisjoint
        names[f"spaces{i}"] = [vars(base) for base in cls.__mro__]
        names["all"], names["map"] = all, map
        lines += [f"    if not all(map(of_class{i}, spaces{i})): return False"]
    exec("\n".join([*lines, "    return True"]), names)
    check: QuickCheck = names["check"]  # type: ignore[assignment]  # what the text defines
    return check


def _table_of(group: Group) -> tuple[int, str] | None:
    """Which table of which module its owner is; None if it is not such a table."""
    fetch = group.fetch
    # All weak references to a module are one object. The module itself may be gone and then has no hash.
    return (id(fetch.module), fetch.table) if isinstance(fetch, ModuleTable) else None


def _is_covered(group: Group, contents: Group | None) -> bool:
    """Whether the guards of a table's contents imply those of its items (for a module's children)."""
    if group.kind != ITEM or contents is None or _table_of(group) is None:
        return False
    kind, *entries = contents.guards
    if _alive(kind) not in (dict, OrderedDict):
        return False
    keys, elements = entries[: len(entries) // 2], entries[len(entries) // 2 :]
    ids = {key.value: element.id for key, element in zip(keys, elements, strict=True)}
    pairs = zip(group.keys, group.guards, strict=True)
    return all(guard.id is not None and ids.get(key) == guard.id for key, guard in pairs)


def _read_contents(group: Group) -> str | None:
    """The expression that reads all of a container `owner` as `_elements` does, without a call in Python."""
    if any(guard.id is None for guard in group.guards):
        return None
    kind = _alive(group.guards[0])
    if kind in (dict, OrderedDict):
        return "[2 * len(owner) + 1, id(type(owner)), *map(id, owner), *map(id, owner.values())]"
    if kind in (list, tuple, deque):
        return "[len(owner) + 1, id(type(owner)), *map(id, owner)]"
    return None


def _alive(guard: Guard) -> object:
    """The object that a guard expects, if it is held weakly."""
    return guard.value() if isinstance(guard.value, weakref.ref) else None


def _read(kind: str, key: str, name: str, missing: bool) -> str:
    """The expression that reads a key of `owner`; `name` is the variable that holds the key."""
    if kind == ATTRIBUTE:
        if missing:
            return f"attribute_or_missing(owner, {name})"
        parts = key.split(".")
        if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            return f"owner.{key}"
        return f"attribute(owner, {name})"
    return f"item_or_missing(owner, {name})" if missing else f"owner[{name}]"


def _elements(container: object, chosen: list[int]) -> list[int]:
    """How many elements a container has, and the identities of the chosen ones."""
    elements = contents(container)
    some = elements if len(elements) == len(chosen) else [elements[i] for i in chosen]
    return [len(elements), *map(id, some)]
