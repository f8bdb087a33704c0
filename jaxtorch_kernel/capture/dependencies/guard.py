"""Guards: what a program depends on beside the data of tensors, and whether it still holds.

A guard says where a value stands (a path that one would write: `cfg.scale`), how to read it now, and what was expected
there. Guards are checked before each run of a program, so they are arranged for speed: those of one object or
dictionary are one group, read by one call in C, and compared by identity. Only where an identity differs are
values compared, slowly; where they turn out equal the new objects are what is expected from then on.

Nothing of the user's is kept alive: objects are held by weak references, and when one dies that is expected somewhere,
the program no longer holds.
"""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch

from .tokens import CONTAINERS, MISSING, Said, Same, is_plain, token

Tensor = torch.Tensor


class Guard:
    """One value that a program depends on.

    Attributes:
        path: where it stands, as one would write it.
        expected: its token.
        id: the identity of what stands there, or None where only its contents count (a list).
        value: itself, where it is plain; a weak reference to it otherwise.
    """

    __slots__ = ("expected", "id", "path", "value")

    def __init__(self, path: str, value: Any):
        self.path = path
        self.expected = token(value)
        self.adopt(value)

    def adopt(self, value: Any) -> None:
        """Expect this very object from now on."""
        self.id: int | None = id(value)
        self.value = value
        if isinstance(value, CONTAINERS) and not is_plain(value):
            self.id, self.value = None, None
        elif not is_plain(value):
            self.value = _weak(value)

    def is_at(self, value: Any) -> bool:
        """Whether this is the very object: another one may have got its identity when it died."""
        alive = not isinstance(self.value, weakref.ref) or self.value() is value
        return self.id == id(value) and alive

    def accepts(self, value: Any) -> bool:
        """Whether a value means the same to the program."""
        if isinstance(self.expected, Same):  # whose number another object may have got
            return self.is_at(value)
        if self.id is None:  # its contents have a guard of their own
            return isinstance(value, CONTAINERS)
        if isinstance(value, Tensor):
            return False  # another tensor
        return bool(token(value) == self.expected)


def _weak(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # it has none, and lives as long as the program
        return value


_CHILD = re.compile(r"\._modules\['([^']*)'\]")  # of a module, as one would write it: `.1`


class Group:
    """The guards of one owner.

    Args:
        fetch: gives the owner, or None where it is gone.
        get: takes the owner, gives the values of all guards as a tuple.
        guards: in that order.
    """

    __slots__ = ("fetch", "get", "guards", "keys", "kind")

    def __init__(self, fetch: Callable[[], Any], kind: str):
        self.fetch = fetch
        self.kind = kind
        self.keys: list[Any] = []
        self.guards: list[Guard] = []
        self.get: Callable[[Any], tuple[Any, ...]] = lambda owner: ()

    def close(self) -> None:
        """All keys are known: make the getter."""
        self.get = _getter(self.kind, self.keys, [g.id == id(MISSING) for g in self.guards])

    def now(self) -> Sequence[Any] | None:
        """What stands at the places of the guards; None where the owner is gone or has lost one of them."""
        try:
            return self.get(self.fetch())
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            return None

    def each_now(self) -> list[Any]:
        """As `now`, place by place: MISSING for what is gone."""
        found = []
        for key in self.keys:
            try:
                found += _getter(self.kind, [key], [False])(self.fetch())
            except (AttributeError, KeyError, IndexError, TypeError, ValueError):
                found.append(MISSING)
        return found


class ClosureFetch:
    """A variable of a function's closure. Where the function is gone nobody can call it, and nothing depends on it."""

    __slots__ = ("code", "function", "place")

    def __init__(self, function: types.FunctionType, place: int):
        self.function = weakref.ref(function)
        self.code = function.__code__
        self.place = place

    def __call__(self) -> Any:
        return self.function().__closure__[self.place]  # type: ignore[union-attr,index]  # AttributeError: gone


def _is_void(group: Group) -> bool:
    return isinstance(group.fetch, ClosureFetch) and group.fetch.function() is None


ATTRIBUTES, ITEMS, CONTENTS = "attributes", "items", "contents"


def _getter(kind: str, keys: list[Any], missing: list[bool]) -> Callable[[Any], Any]:
    if kind == CONTENTS:
        return contents
    if any(missing):
        read = _attribute_or_missing if kind == ATTRIBUTES else _item_or_missing
        return lambda owner: tuple([read(owner, key) for key in keys])
    make: Any = attrgetter if kind == ATTRIBUTES else itemgetter
    get = make(*keys)
    if len(keys) == 1:
        return lambda owner: (get(owner),)
    return get


def _attribute_or_missing(owner: Any, path: str) -> Any:
    if owner is None:
        raise AttributeError(path)
    try:
        return attrgetter(path)(owner)
    except AttributeError:
        return MISSING


def _item_or_missing(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except (KeyError, IndexError):
        return MISSING


def contents(container: Any) -> tuple[Any, ...]:
    """What a container holds, with its type, in order."""
    if isinstance(container, dict | types.MappingProxyType):
        return (type(container), *container, *container.values())
    if isinstance(container, set | frozenset):
        return (type(container), *sorted(container, key=id))
    return (type(container), *container)


def _other_contents(group: Group) -> list[Change]:
    """What a container has gained and lost; where its order alone is another one, that."""
    path = group.guards[0].path
    try:
        now = group.fetch()
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return [Change(path, "there", None)]
    if not isinstance(now, dict | types.MappingProxyType):
        return [Change(path, None, Said("has other contents"))]
    known = {g.path: g.expected for g in group.guards}
    found = [(f"{path}[{key!r}]", value) for key, value in now.items()]
    changes = [Change(where, None, token(value)) for where, value in found if where not in known]
    there = {where for where, _ in found} | {path}
    lost = [where for where in known if where not in there and " (its key " not in where]
    changes += [Change(where, known[where], None) for where in lost]
    return changes or [Change(path, None, Said("has other contents"))]


class Change(NamedTuple):
    """A guard that does not hold: its path, what was expected, what stands there."""

    path: str
    old: Any
    new: Any


class Check:
    """A guard that asks a question: `holds()`. `path` and `what` say what became of it where it does not."""

    __slots__ = ("holds", "path", "what")

    def __init__(self, path: str, what: str, holds: Callable[[], bool]):
        self.path, self.what, self.holds = path, what, holds


class Table:
    """A module's table of parameters or buffers, guarded as a whole.

    The table is held itself, which keeps its tensors alive: until the module dies (`Guards.release`).
    """

    __slots__ = ("guards", "module", "path", "table")

    def __init__(self, path: str, module: torch.nn.Module, table: dict[str, Any]):
        self.path, self.table = path, table
        self.module = weakref.ref(module)
        self.guards = [Guard(f"{path}.{name}", value) for name, value in table.items()]

    def changes(self) -> list[Change]:
        """What stands in the table that did not."""
        known = {guard.path.rpartition(".")[2]: guard for guard in self.guards}
        found = []
        for name in {**known, **self.table}:
            guard, value = known.get(name), self.table.get(name, MISSING)
            if guard is None:
                found.append(Change(f"{self.path}.{name}", None, token(value)))
            elif guard.id != id(value):
                found.append(Change(guard.path, guard.expected, token(value)))
        return found


_values = dict.values
_has = dict.__contains__
_forward = repeat("forward")


def users_hooks(hooks: dict[Any, Any]) -> dict[Any, Any]:
    """Those of a table that are not this project's."""
    return {
        key: hook
        for key, hook in list(hooks.items())
        if not str(getattr(hook, "__module__", "")).startswith("jaxtorch.")
    }


class Guards:
    """All that one program depends on. Made by a `Recorder`.

    Args:
        groups, checks, tables: the guards.
        hookless: (path, table of hooks) of those that are empty.
        attributes: (path, attributes) of modules that must get no `forward` of their own.
        absent: (dictionary, names that it must not get): globals that would hide a builtin.
        modules: that ran; when one dies, what is held of it is let go.
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
        self._held = [t.table for t in tables]
        self._ids = tuple(guard.id for t in tables for guard in t.guards)
        self._hook_paths, self._attribute_paths = hookless, attributes
        self._hookless = [hooks for _, hooks in hookless]
        self._attributes = [own for _, own in attributes]
        self._absent = [(table.__contains__, names) for table, names in absent]
        mark = _Mark(self)
        self._modules = [weakref.ref(m, mark.release) for m in modules]
        self._dead = self.gone = False
        self._is_bare = not (
            groups or checks or tables or hookless or attributes or absent or modules
        )
        self._watch: list[Any] = []
        self._flat: list[tuple[Any, Any, tuple[int, ...]]] = []
        self._flatten()

    def _flatten(self) -> None:
        """Arrange the guards for the fast check."""
        self._watch = []
        self._flat = []
        mark = _Mark(self)
        self.groups = [group for group in self.groups if not _is_void(group)]
        for group in self.groups:
            if isinstance(group.fetch, ClosureFetch):
                self._watch.append(weakref.ref(group.fetch.function(), mark))
            for guard in group.guards:
                if isinstance(guard.value, weakref.ref) and (value := guard.value()) is not None:
                    self._watch.append(weakref.ref(value, mark))
            ids = tuple(g.id for g in group.guards if g.id is not None)
            if len(ids) < len(group.guards):
                chosen = [i for i, g in enumerate(group.guards) if g.id is not None]
                if chosen:
                    self._flat.append((group.fetch, _some(group.get, chosen), ids))
            else:
                self._flat.append((group.fetch, group.get, ids))

    def hold(self) -> bool:
        """Whether everything is as it was when the program was traced, or means the same."""
        if self._is_bare:
            return True
        return self._is_same() or (not self.gone and self._adopt() and self._is_same())

    def _is_same(self) -> bool:
        """Whether every object is the one that was expected."""
        # While another thread traces, ours are in the tables of all modules.
        if any(self._hookless) and any(map(users_hooks, self._hookless)):
            return False
        if self._dead or any(map(_has, self._attributes, _forward)):
            return False
        if tuple(map(id, chain.from_iterable(map(_values, self._held)))) != self._ids:
            return False
        for has, names in self._absent:
            if any(map(has, names)):
                return False
        try:
            for fetch, get, ids in self._flat:
                if tuple(map(id, get(fetch()))) != ids:
                    return False
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            return False
        return all(check.holds() for check in self.checks)

    def release(self) -> None:
        """A module has died: the program can never hold again, and keeps nothing alive."""
        self.gone = self._dead = True
        self._held, self.tables, self._hookless, self._attributes = [], [], [], []
        self._hook_paths, self._attribute_paths = [], []

    def _adopt(self) -> bool:
        """Whether what differs means the same; then that is what is expected from now on."""
        new: list[tuple[Guard, Any]] = []
        for group in self.groups:
            if _is_void(group):
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
        self._flatten()
        return True

    def changes(self) -> list[Change]:
        """What does not hold."""
        found = []
        for group in self.groups:
            values = group.now()
            if group.kind == CONTENTS and (values is None or len(values) != len(group.guards)):
                found += _other_contents(group)
                continue
            values = group.each_now() if values is None else values
            for guard, value in zip(group.guards, values, strict=False):
                if not guard.is_at(value) and not guard.accepts(value):
                    found += self._closure(guard.path, value) or [
                        Change(guard.path, guard.expected, token(value))
                    ]
        for table in self.tables:
            found += table.changes()
        for path, hooks in self._hook_paths:
            found += [Change(f"{path}[{key}]", None, Said("is new")) for key in users_hooks(hooks)]
        for path, own in self._attribute_paths:
            found += [Change(f"{path}.forward", None, Said("is new"))] if "forward" in own else []
        for has, names in self._absent:
            found += [Change(name, "builtin", "new") for name in names if has(name)]
        found += [Change(c.path, None, Said(c.what)) for c in self.checks if not c.holds()]
        if self.gone and not found:
            found.append(Change("a module that it called", "there", None))
        return [change._replace(path=_CHILD.sub(r".\1", change.path)) for change in found]

    def _closure(self, path: str, function: Any) -> list[Change]:
        """What differs in the closure of a function that stands where another one of the same code stood."""
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
        """path -> what was expected there."""
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


def _some(get: Callable[[Any], Any], chosen: list[int]) -> Callable[[Any], Any]:
    pick = itemgetter(*chosen)
    if len(chosen) == 1:
        return lambda owner: (pick(get(owner)),)
    return lambda owner: pick(get(owner))
