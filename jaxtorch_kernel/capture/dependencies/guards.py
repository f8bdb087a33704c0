"""All guards of one program, and their check before each run.

The check has two parts. The quick check compares the identity of every object with the expected one, in a function
generated from the guards (`_quick_check`), so that a guard costs one read and one comparison. If it fails, values are
compared, which is slower; if they are equivalent, the new objects become the expected ones.

The tables of modules are read as a whole, in C loops.
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
from typing import Any

import torch

from .fetch import ModuleTable
from .guard import (
    ATTRIBUTES,
    CONTENTS,
    GONE,
    ITEMS,
    Change,
    Check,
    ClosureFetch,
    Group,
    Guard,
    Table,
    attribute_or_missing,
    contents,
    is_void,
    item_or_missing,
    other_contents,
    users_hooks,
)
from .tokens import MISSING, Said, token

Tensor = torch.Tensor

_CHILD = re.compile(r"\._modules\['([^']*)'\]")  # of a module, as one would write it: `.1`
_values = dict.values
_has = dict.__contains__
_forward = repeat("forward")


class Guards:
    """All guards of one program. Created by a `Recorder`.

    Args:
        groups, checks, tables: the guards.
        hookless: (path, table of hooks) of the empty ones.
        attributes: (path, attributes) of modules that must get no `forward` of their own.
        absent: (dictionary, names that it must not get): globals that would hide a builtin.
        modules: that ran; when one dies, its references are dropped.
    """

    def __init__(
        self,
        groups: list[Group],
        checks: list[Check],
        tables: list[Table],
        hookless: list[tuple[str, dict[Any, Any]]],
        attributes: list[tuple[str, dict[str, Any]]],
        absent: list[tuple[dict[str, Any], set[str]]],
        modules: list[torch.nn.Module],
    ):
        self.groups = groups
        self.checks = checks
        self.tables = tables
        self._held = [t.table for t in tables if t.guards]
        self._empty = [t.table for t in tables if not t.guards]  # as most modules' buffers are
        self._ids = [guard.id for t in tables for guard in t.guards]
        self._hook_paths, self._attribute_paths = hookless, attributes
        self._hookless = [hooks for _, hooks in hookless]
        self._attributes = [own for _, own in attributes]
        self._absent = [(table.__contains__, names) for table, names in absent]
        mark = _Mark(self)
        self._modules = [weakref.ref(m, mark.release) for m in modules]
        self._classes = list(map(type, modules))  # one may be given another class
        self._dead = self.gone = False
        # Nothing beside arguments is read.
        self.is_bare = not (
            groups or checks or tables or hookless or attributes or absent or modules
        )
        self._watch: list[Any] = []
        self._check: Callable[[list[Any]], bool] | None = None  # made at the first run
        self._expected: list[Any] = []
        self._arrange()

    def _arrange(self) -> None:
        """Let the quick check be of the objects that are expected now."""
        mark = _Mark(self)
        groups = [group for group in self.groups if not is_void(group)]
        if len(groups) < len(self.groups):
            self.groups, self._check = groups, None
        watch = []
        for group in groups:
            if isinstance(group.fetch, ClosureFetch):
                watch.append(weakref.ref(group.fetch.function(), mark))
            for guard in group.guards:
                if isinstance(guard.value, weakref.ref) and (value := guard.value()) is not None:
                    watch.append(weakref.ref(value, mark))
        self._watch = watch
        self._expected = _expected(groups)

    def hold(self) -> bool:
        """Whether everything is as it was when the program was traced, or equivalent."""
        if self.is_bare:
            return True
        in_tables = map(id, chain.from_iterable(map(_values, self._held)))
        if list(in_tables) != self._ids or any(self._empty):
            return False
        return self._is_same() or (not self.gone and self._adopt() and self._is_same())

    def _is_same(self) -> bool:
        """Whether every object is the one that was expected."""
        # While another thread traces, ours are in the tables of all modules.
        if any(self._hookless) and any(map(users_hooks, self._hookless)):
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
        self._held, self._empty, self.tables = [], [], []
        self._hookless, self._attributes = [], []
        self._hook_paths, self._attribute_paths = [], []

    def _adopt(self) -> bool:
        """Whether what differs means the same; then that is what is expected from now on."""
        new: list[tuple[Guard, Any]] = []
        for group in self.groups:
            if is_void(group):
                continue
            values = group.now()
            if values is None or len(values) != len(group.guards):
                return False
            for guard, value in zip(group.guards, values, strict=True):
                if guard.is_at(value):
                    continue
                if not guard.accepts(value):
                    return False
                new.append((guard, value))
        for guard, value in new:
            guard.adopt(value)
        self._dead = False
        self._arrange()
        return True

    def changes(self) -> list[Change]:
        """The guards that fail: those of values that the code was seen to read, or else of values it may have read."""
        found: list[Change] = []
        perhaps: list[Change] = []
        for group in self.groups:
            values = group.now()
            if group.kind == CONTENTS and (values is None or len(values) != len(group.guards)):
                found += other_contents(group)
                continue
            values = group.each_now() if values is None else values
            for guard, value in zip(group.guards, values, strict=False):
                if not guard.is_at(value) and not guard.accepts(value):
                    change = Change(guard.path, guard.expected, token(value))
                    known = found if guard.direct else perhaps
                    known += self._closure(guard.path, value) or [change]
        found = found or perhaps
        for table in self.tables:
            found += table.changes()
        for path, hooks in self._hook_paths:
            found += [Change(f"{path}[{key}]", None, Said("is new")) for key in users_hooks(hooks)]
        for path, own in self._attribute_paths:
            found += [Change(f"{path}.forward", None, Said("is new"))] if "forward" in own else []
        for reference, cls in zip(self._modules, self._classes, strict=True):
            now = type(reference())
            if now is not cls and reference() is not None:
                found.append(Change("a module's class", cls.__name__, now.__name__))
        for has, names in self._absent:
            found += [Change(name, "builtin", "new") for name in names if has(name)]
        found += [Change(c.path, None, Said(c.what)) for c in self.checks if not c.holds()]
        if self.gone and not found:
            found.append(Change("a module that it called", "there", None))
        return [change._replace(path=_CHILD.sub(r".\1", change.path)) for change in found]

    def _closure(self, path: str, function: Any) -> list[Change]:
        """The differences in the closure of a function that replaced another one with the same code."""
        if not isinstance(function, types.FunctionType):
            return []
        found = []
        for group in self.groups:
            fetch = group.fetch
            if isinstance(fetch, ClosureFetch) and fetch.code is function.__code__:
                cell = (function.__closure__ or ())[fetch.place]
                (guard,) = group.guards
                if not guard.accepts(cell.cell_contents):
                    name = f"{path}.{guard.path}"
                    found.append(Change(name, guard.expected, token(cell.cell_contents)))
        return found

    def state(self) -> dict[str, Any]:
        """path -> the expected token."""
        guards = [g for group in self.groups for g in group.guards]
        guards += [g for table in self.tables for g in table.guards]
        return {g.path: g.expected for g in guards}


class _Mark:
    """What a dying object calls: the program that expects it must look again. Holds the Guards weakly."""

    __slots__ = ("guards",)

    def __init__(self, guards: Guards):
        self.guards = weakref.ref(guards)

    def __call__(self, _: Any) -> None:
        guards = self.guards()
        if guards is not None:
            guards._dead = True

    def release(self, _: Any) -> None:
        guards = self.guards()
        if guards is not None:
            guards.release()


def _expected(groups: list[Group]) -> list[Any]:
    """What `_quick_check` compares with: the identity of each object; of a container, its length and elements."""
    found: list[Any] = []
    for group in groups:
        if group.absent:
            pairs = zip(group.keys, group.guards, strict=True)
            ids = [g.id for key, g in pairs if g.id is not None and key not in group.absent]
        else:
            ids = [guard.id for guard in group.guards if guard.id is not None]
        found += [[len(group.guards), *ids]] if group.kind == CONTENTS else ids
    return found


def _quick_check(groups: list[Group]) -> Callable[[list[Any]], bool]:
    """Make the function that reads what all guards are of, and compares identities with `_expected(groups)`.

    Of two attributes and a global its source is

        def check(expected):
            owner = fetch0()
            if id(owner.scale) != expected[0] or id(owner.shift) != expected[1]: return False
            owner = fetch1()
            if id(owner[key1_0]) != expected[2]: return False
            return True
    """
    names: dict[str, Any] = {
        "attribute_or_missing": attribute_or_missing,
        "item_or_missing": item_or_missing,
        "attribute": getattr,
        "elements": _elements,
    }
    whole = {_table_of(g): g for g in groups if g.kind == CONTENTS}
    lines = ["def check(expected):"]
    place = 0
    classes: dict[type, set[str]] = {}  # -> names that none of them may get
    for i, group in enumerate(groups):
        compared = []
        if group.absent:
            owner = group.fetch()
            classes.setdefault(type(owner), set()).update(group.absent)
            names[f"absent{i}"] = group.absent.isdisjoint
            tables = ["__dict__"]
            if isinstance(owner, torch.nn.Module):
                tables += ["_parameters", "_buffers", "_modules"]
            compared = [f"not absent{i}(owner.{table})" for table in tables]
        for j, (key, guard) in enumerate(zip(group.keys, group.guards, strict=False)):
            if group.kind == CONTENTS:
                names[f"chosen{i}"] = [k for k, g in enumerate(group.guards) if g.id is not None]
                read = _read_contents(group) or f"elements(owner, chosen{i})"
            elif guard.id is None or key in group.absent:
                continue  # only its contents count, which have a group of their own
            else:
                names[f"key{i}_{j}"] = key
                read = f"id({_read(group.kind, key, f'key{i}_{j}', guard.id == id(MISSING))})"
            compared.append(f"{read} != expected[{place}]")
            place += 1
        if compared and not _is_within(group, whole.get(_table_of(group))):
            names[f"fetch{i}"] = group.fetch
            lines += [f"    owner = fetch{i}()", f"    if {' or '.join(compared)}: return False"]
    for i, (cls, absent) in enumerate(classes.items()):
        names[f"of_class{i}"] = absent.isdisjoint
        names[f"spaces{i}"] = [vars(base) for base in cls.__mro__]
        names["all"], names["map"] = all, map
        lines += [f"    if not all(map(of_class{i}, spaces{i})): return False"]
    exec("\n".join([*lines, "    return True"]), names)
    check: Callable[[list[Any]], bool] = names["check"]
    return check


def _table_of(group: Group) -> Any:
    """Which table of which module its owner is, or that it is none."""
    fetch = group.fetch
    # All weak references to a module are one object. The module may be gone, and then has no hash.
    return (id(fetch.module), fetch.table) if isinstance(fetch, ModuleTable) else None


def _is_within(group: Group, contents: Group | None) -> bool:
    """Whether the guards of a container's contents ask what those of its items ask: of a module's children."""
    if group.kind != ITEMS or contents is None or _table_of(group) is None:
        return False
    kind, *found = contents.guards
    if kind.value() not in (dict, OrderedDict):
        return False
    keys, elements = found[: len(found) // 2], found[len(found) // 2 :]
    ids = {key.value: element.id for key, element in zip(keys, elements, strict=True)}
    pairs = zip(group.keys, group.guards, strict=True)
    return all(guard.id is not None and ids.get(key) == guard.id for key, guard in pairs)


def _read_contents(group: Group) -> str | None:
    """The expression that reads all of a container `owner` as `_elements` does, without a call in Python."""
    if any(guard.id is None for guard in group.guards):
        return None
    kind = group.guards[0].value()
    if kind in (dict, OrderedDict):
        return "[2 * len(owner) + 1, id(type(owner)), *map(id, owner), *map(id, owner.values())]"
    if kind in (list, tuple, deque):
        return "[len(owner) + 1, id(type(owner)), *map(id, owner)]"
    return None


def _read(kind: str, key: Any, name: str, missing: bool) -> str:
    """The expression that reads a key of `owner`; `name` is the key's."""
    if kind == ATTRIBUTES:
        if missing:
            return f"attribute_or_missing(owner, {name})"
        parts = key.split(".")
        if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            return f"owner.{key}"
        return f"attribute(owner, {name})"
    return f"item_or_missing(owner, {name})" if missing else f"owner[{name}]"


def _elements(container: Any, chosen: list[int]) -> list[int]:
    """How many elements a container has, and the identities of some of them."""
    found = contents(container)
    chosen_ones = found if len(found) == len(chosen) else [found[i] for i in chosen]
    return [len(found), *map(id, chosen_ones)]
