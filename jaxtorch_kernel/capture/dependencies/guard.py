"""Guards: what a program depends on besides the data of tensors.

A guard has the path of a value (as in source code: `cfg.scale`), a way to read it again, and the expected value. The
guards of one object or dictionary form a group. `guards.py` checks whether all of them hold.

Guards keep no user objects alive: they hold weak references, and when an expected object dies, the program becomes
invalid.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch

from .fetch import GONE, ClosureFetch, Fetch, item_of, runs_code
from .reads import ATTRIBUTE
from .tokens import (
    CONTAINERS,
    MISSING,
    AnyNumber,
    Identity,
    Phrase,
    is_plain,
    is_user_class,
    items_of,
    token,
)

Tensor = torch.Tensor

# The kinds of a group are ATTRIBUTE and ITEM (`reads.py`), and:
CONTENTS = "contents"

# A table of hooks, as torch keeps it on a module: handle id -> hook.
Hooks = Mapping[int, Callable[..., object]]


_ANYTHING = object()


class Guard:
    """One value that a program depends on.

    Attributes:
        path: where it is found, as in source code.
        expected: its token.
        id: the identity of the value, or None if only its contents matter (a list).
        value: the value if it is plain, otherwise a weak reference to it.
        direct: whether the code was seen to read it, instead of merely being able to.
    """

    __slots__ = ("direct", "expected", "id", "path", "value")

    def __init__(self, path: str, value: object, direct: bool = True):
        self.path, self.direct = path, direct
        self.expected = token(value)
        self.expect(value)

    def expect(self, value: object) -> None:
        """Expect this very object from now on."""
        self.id: int | None = id(value)
        self.value: object = value
        # The numbers that vary have checks of their own (`host_numbers.py`).
        if isinstance(self.expected, AnyNumber) or (
            isinstance(value, CONTAINERS) and not is_plain(value) and not is_user_class(type(value))
        ):
            self.id, self.value = None, None
        elif not is_plain(value):
            self.value = _weak(value)

    def release(self) -> None:
        """Accept any value from now on."""
        self.id, self.value = None, _ANYTHING

    def is_at(self, value: object) -> bool:
        """Whether this is the expected object itself: after its death another object may have its id."""
        if self.value is _ANYTHING:
            return True
        alive = not isinstance(self.value, weakref.ref) or self.value() is value
        return self.id == id(value) and alive

    def accepts(self, value: object) -> bool:
        """Whether a value is equivalent for the program."""
        if isinstance(self.expected, Identity):  # its id may belong to another object by now
            return self.is_at(value)
        if isinstance(self.expected, AnyNumber):
            return type(value) is self.expected.type
        if self.id is None:  # the contents have a guard of their own
            return isinstance(value, CONTAINERS)
        if isinstance(value, (Tensor, *CONTAINERS)) and not is_plain(value):
            return (
                False  # another tensor, or a container of a user class, which may have attributes
            )
        return bool(token(value) == self.expected)


def _weak(value: object) -> object:
    try:
        return weakref.ref(value)
    except TypeError:  # its type does not support them: it lives as long as the program
        return value


class Group:
    """The guards of one owner.

    Args:
        fetch: returns the owner, or None if it no longer exists.
        kind: ATTRIBUTE, ITEM or CONTENTS.

    Attributes:
        get: takes the owner, returns the values of all guards as a tuple.
        guards: in that order.
        absent: the names of attributes that neither the object nor its class may get.
    """

    __slots__ = ("absent", "fetch", "get", "guards", "keys", "kind")

    def __init__(self, fetch: Fetch, kind: str):
        self.fetch = fetch
        self.kind = kind
        self.absent: frozenset[str] = frozenset()
        self.keys: list[Any] = []  # names of attributes, or keys of items
        self.guards: list[Guard] = []
        self.get: Callable[[object], tuple[object, ...]] = lambda owner: ()

    def close(self) -> None:
        """Build the getter, once all keys are known."""
        missing = [guard.id == id(MISSING) for guard in self.guards]
        owner = self.fetch()
        if self.kind == ATTRIBUTE and isinstance(getattr(owner, "__dict__", None), dict):
            has_plain_lookup = type(owner).__getattribute__ is object.__getattribute__
            fallback = getattr(type(owner), "__getattr__", None)
            if has_plain_lookup and fallback in (None, torch.nn.Module.__getattr__):
                pairs = zip(self.keys, missing, strict=True)
                self.absent = frozenset(key for key, is_missing in pairs if is_missing)
        self.get = _getter(self.kind, self.keys, missing, runs_code(owner))

    def element(self, key: object) -> Guard | None:
        """The guard of the element under a key of the container whose contents these are."""
        owner = self.fetch()
        is_map = isinstance(owner, dict | types.MappingProxyType)
        count = len(self.guards) // 2 if is_map else len(self.guards) - 1
        keys: list[object] = list(range(count))
        if is_map:
            keys = [guard.value for guard in self.guards[1 : count + 1]]
        return self.guards[keys.index(key) - count] if key in keys else None

    def current(self) -> Sequence[object] | None:
        """The current values of all guards; None if the owner no longer exists or lacks one of them."""
        try:
            return self.get(self.fetch())
        except GONE:
            return None

    def each_current(self) -> list[object]:
        """Like `current`, one by one, with MISSING for values that no longer exist."""
        values: list[object] = []
        for key in self.keys:
            try:
                owner = self.fetch()
                values += _getter(self.kind, [key], [False], runs_code(owner))(owner)
            except GONE:
                values.append(MISSING)
        return values


def is_void(group: Group) -> bool:
    """Whether the group is of a variable that is no longer reachable."""
    return isinstance(group.fetch, ClosureFetch) and group.fetch.function() is None


def _getter(
    kind: str, keys: list[Any], missing: list[bool], careful: bool
) -> Callable[[object], tuple[object, ...]]:
    if kind == CONTENTS:
        return contents
    if kind != ATTRIBUTE and careful and not any(missing):
        return lambda owner: tuple([item_of(owner, key) for key in keys])
    if any(missing):
        read = attribute_or_missing if kind == ATTRIBUTE else item_or_missing
        return lambda owner: tuple([read(owner, key) for key in keys])
    make: Any = attrgetter if kind == ATTRIBUTE else itemgetter
    get: Callable[[object], Any] = make(*keys)
    if len(keys) == 1:
        return lambda owner: (get(owner),)
    return get


def attribute_or_missing(owner: object, path: str) -> object:
    """An attribute, or MISSING. Raises AttributeError if the owner no longer exists."""
    if owner is None:
        raise AttributeError(path)
    try:
        return attrgetter(path)(owner)
    except AttributeError:
        return MISSING


def item_or_missing(owner: Any, key: object) -> object:
    """An item, or MISSING."""
    try:
        return item_of(owner, key)
    except (KeyError, IndexError):
        return MISSING


def contents(container: Any) -> tuple[object, ...]:
    """The type and the contents of a container, in its own order, which code may see."""
    if isinstance(container, dict | types.MappingProxyType):
        if type(container) is dict:
            return (dict, *container, *container.values())
        items = items_of(container)
        return (type(container), *[key for key, _ in items], *[value for _, value in items])
    return (type(container), *container)


def contents_changes(group: Group) -> list[Change]:
    """The keys that a container gained and lost, or a change of their order."""
    path = group.guards[0].path
    try:
        now = group.fetch()
    except GONE:
        return [Change(path, "there", None)]
    if not isinstance(now, dict | types.MappingProxyType):
        return [Change(path, None, Phrase("has different contents"))]
    expected = {g.path: g.expected for g in group.guards}
    items = [(f"{path}[{key!r}]", value) for key, value in items_of(now)]
    changes = [Change(where, None, token(value)) for where, value in items if where not in expected]
    present = {where for where, _ in items} | {path}
    lost = [where for where in expected if where not in present and " (its key " not in where]
    changes += [Change(where, expected[where], None) for where in lost]
    return changes or [Change(path, None, Phrase("has different contents"))]


class Change(NamedTuple):
    """A guard that does not hold: its path, the expected token and the current one.

    In place of a token, None says that there is no value, and a `Phrase` describes the change.
    """

    path: str
    old: object
    new: object


class Check:
    """A guard with its own check, `holds()`. If it fails, `path` and `what` describe the change."""

    __slots__ = ("holds", "path", "what")

    def __init__(self, path: str, what: str, holds: Callable[[], bool]):
        self.path, self.what, self.holds = path, what, holds


class ArrayCheck(Check):
    """A check of the contents of a NumPy array: a jaxpr that was traced with it may share its memory."""

    __slots__ = ()


class TensorTable:
    """A module's table of parameters or buffers, guarded as a whole.

    It holds the table strongly, which keeps the tensors alive until the module dies (`Guards.release`).

    Args:
        path, module, table: the table, and whose it is.
        entries: what it must contain at each run.
    """

    __slots__ = ("guards", "module", "path", "table")

    def __init__(
        self,
        path: str,
        module: torch.nn.Module,
        table: dict[str, Tensor | None],
        entries: dict[str, Tensor | None],
    ):
        self.path, self.table = path, table
        self.module = weakref.ref(module)
        self.guards = [Guard(f"{path}.{name}", value) for name, value in entries.items()]

    def changes(self) -> list[Change]:
        """The entries that were added, removed or replaced."""
        guards = {guard.path.rpartition(".")[2]: guard for guard in self.guards}
        changes = []
        for name in {**guards, **self.table}:
            guard, value = guards.get(name), self.table.get(name, MISSING)
            if guard is None:
                changes.append(Change(f"{self.path}.{name}", None, token(value)))
            elif guard.id != id(value):
                changes.append(Change(guard.path, guard.expected, token(value)))
        return changes


def user_hooks(hooks: Hooks) -> dict[int, Callable[..., object]]:
    """The hooks of a table, without those that this project adds during a trace."""
    return {
        key: hook
        for key, hook in list(hooks.items())
        if not str(getattr(hook, "__module__", "")).startswith("jaxtorch.")
    }
