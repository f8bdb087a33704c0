"""Guards: what a program depends on besides the data of tensors.

A guard has the path of a value (as in source code: `cfg.scale`), a way to read it again, and the expected value. The
guards of one object or dictionary form a group. `guards.py` checks whether all of them hold.

Guards keep no user objects alive: they hold weak references, and when an expected object dies, the program becomes
invalid.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch

from .tokens import CONTAINERS, MISSING, Said, Same, is_plain, is_users_class, token

Tensor = torch.Tensor

# What reading a place raises where its owner is gone, or has lost it.
GONE = AttributeError, KeyError, IndexError, TypeError, ValueError


class Guard:
    """One value that a program depends on.

    Attributes:
        path: where it is found, as in source code.
        expected: its token.
        id: the identity of the value, or None if only its contents count (a list).
        value: the value if it is plain, otherwise a weak reference to it.
        direct: whether the code was seen to read it, and not only might have.
    """

    __slots__ = ("direct", "expected", "id", "path", "value")

    def __init__(self, path: str, value: Any, direct: bool = True):
        self.path, self.direct = path, direct
        self.expected = token(value)
        self.adopt(value)

    def adopt(self, value: Any) -> None:
        """Expect this very object from now on."""
        self.id: int | None = id(value)
        self.value = value
        if (
            isinstance(value, CONTAINERS)
            and not is_plain(value)
            and not is_users_class(type(value))
        ):
            self.id, self.value = None, None
        elif not is_plain(value):
            self.value = _weak(value)

    def is_at(self, value: Any) -> bool:
        """Whether this is the very object: after its death another one may have its id."""
        alive = not isinstance(self.value, weakref.ref) or self.value() is value
        return self.id == id(value) and alive

    def accepts(self, value: Any) -> bool:
        """Whether a value is equivalent for the program."""
        if isinstance(self.expected, Same):  # whose number another object may have got
            return self.is_at(value)
        if self.id is None:  # its contents have a guard of their own
            return isinstance(value, CONTAINERS)
        if isinstance(value, (Tensor, *CONTAINERS)) and not is_plain(value):
            return False  # another tensor, or a container of a class of the user's, which may have attributes
        return bool(token(value) == self.expected)


def _weak(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # it has none, and lives as long as the program
        return value


class Group:
    """The guards of one owner.

    Args:
        fetch: returns the owner, or None if it no longer exists.
        get: takes the owner, returns the values of all guards as a tuple.
        guards: in that order.
        absent: the names of attributes that neither the object nor its class may get.
    """

    __slots__ = ("absent", "fetch", "get", "guards", "keys", "kind")

    def __init__(self, fetch: Callable[[], Any], kind: str):
        self.fetch = fetch
        self.kind = kind
        self.absent: frozenset[str] = frozenset()
        self.keys: list[Any] = []
        self.guards: list[Guard] = []
        self.get: Callable[[Any], tuple[Any, ...]] = lambda owner: ()

    def close(self) -> None:
        """Build the getter, once all keys are known."""
        owner = self.fetch()
        if self.kind == ATTRIBUTES and isinstance(getattr(owner, "__dict__", None), dict):
            getter = getattr(type(owner), "__getattr__", None)
            lookup: Any = type(owner).__getattribute__
            plain = lookup is object.__getattribute__
            if plain and getter in (None, torch.nn.Module.__getattr__):
                missing = [
                    k for k, g in zip(self.keys, self.guards, strict=True) if g.id == id(MISSING)
                ]
                self.absent = frozenset(missing)
        self.get = _getter(self.kind, self.keys, [g.id == id(MISSING) for g in self.guards])

    def now(self) -> Sequence[Any] | None:
        """The current values of all guards; None if the owner no longer exists or lacks one of them."""
        try:
            return self.get(self.fetch())
        except GONE:
            return None

    def each_now(self) -> list[Any]:
        """Like `now`, one by one, with MISSING for values that no longer exist."""
        found = []
        for key in self.keys:
            try:
                found += _getter(self.kind, [key], [False])(self.fetch())
            except GONE:
                found.append(MISSING)
        return found


class ClosureFetch:
    """A closure variable of a function. If the function no longer exists, nothing depends on the variable."""

    __slots__ = ("code", "function", "place")

    def __init__(self, function: types.FunctionType, place: int):
        self.function = weakref.ref(function)
        self.code = function.__code__
        self.place = place

    def __call__(self) -> Any:
        return self.function().__closure__[self.place]  # type: ignore[union-attr,index]  # AttributeError: gone


def is_void(group: Group) -> bool:
    """Whether the group is of a variable that is no longer reachable."""
    return isinstance(group.fetch, ClosureFetch) and group.fetch.function() is None


ATTRIBUTES, ITEMS, CONTENTS = "attributes", "items", "contents"


def _getter(kind: str, keys: list[Any], missing: list[bool]) -> Callable[[Any], Any]:
    if kind == CONTENTS:
        return contents
    if any(missing):
        read = attribute_or_missing if kind == ATTRIBUTES else item_or_missing
        return lambda owner: tuple([read(owner, key) for key in keys])
    make: Any = attrgetter if kind == ATTRIBUTES else itemgetter
    get = make(*keys)
    if len(keys) == 1:
        return lambda owner: (get(owner),)
    return get


def attribute_or_missing(owner: Any, path: str) -> Any:
    """An attribute, or MISSING. Raises AttributeError if the owner no longer exists."""
    if owner is None:
        raise AttributeError(path)
    try:
        return attrgetter(path)(owner)
    except AttributeError:
        return MISSING


def item_or_missing(owner: Any, key: Any) -> Any:
    """An item, or MISSING."""
    try:
        return owner[key]
    except (KeyError, IndexError):
        return MISSING


def contents(container: Any) -> tuple[Any, ...]:
    """The type and the contents of a container, in order."""
    if isinstance(container, dict | types.MappingProxyType):
        return (type(container), *container, *container.values())
    if isinstance(container, set | frozenset):
        return (type(container), *container)  # in its own order, which code may see
    return (type(container), *container)


def other_contents(group: Group) -> list[Change]:
    """The keys that a container gained and lost, or a change of their order."""
    path = group.guards[0].path
    try:
        now = group.fetch()
    except GONE:
        return [Change(path, "there", None)]
    if not isinstance(now, dict | types.MappingProxyType):
        return [Change(path, None, Said("has different contents"))]
    known = {g.path: g.expected for g in group.guards}
    found = [(f"{path}[{key!r}]", value) for key, value in now.items()]
    changes = [Change(where, None, token(value)) for where, value in found if where not in known]
    there = {where for where, _ in found} | {path}
    lost = [where for where in known if where not in there and " (its key " not in where]
    changes += [Change(where, known[where], None) for where in lost]
    return changes or [Change(path, None, Said("has different contents"))]


class Change(NamedTuple):
    """A guard that does not hold: its path, the expected token and the current one."""

    path: str
    old: Any
    new: Any


class Check:
    """A guard with its own check, `holds()`. If it fails, `path` and `what` describe the change."""

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
        """The entries that the table has gained."""
        known = {guard.path.rpartition(".")[2]: guard for guard in self.guards}
        found = []
        for name in {**known, **self.table}:
            guard, value = known.get(name), self.table.get(name, MISSING)
            if guard is None:
                found.append(Change(f"{self.path}.{name}", None, token(value)))
            elif guard.id != id(value):
                found.append(Change(guard.path, guard.expected, token(value)))
        return found


def users_hooks(hooks: dict[Any, Any]) -> dict[Any, Any]:
    """The hooks of a table that are not this project's."""
    return {
        key: hook
        for key, hook in list(hooks.items())
        if not str(getattr(hook, "__module__", "")).startswith("jaxtorch.")
    }
