"""Which numbers have changed since a trace: the slots whose guards expect other numbers than they hold now.

Only a slot that runs no code of the user's can hold a HostNumber during the next trace.
"""

from __future__ import annotations

import inspect
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator

import torch

from .fetch import fetched
from .guard import CONTENTS, Group
from .guards import Guards
from .reads import ATTRIBUTE, ITEM
from .slots import Slot
from .tokens import Value

# Containers that run no code of the user's.
_PLAIN_CONTAINERS = (dict, list, OrderedDict, defaultdict)
# Assignments of attributes that run no code of the user's.
_PLAIN_ASSIGNMENTS: tuple[object, ...] = (
    object.__setattr__,
    type.__setattr__,
    types.ModuleType.__setattr__,
    torch.nn.Module.__setattr__,
)


def is_numeric(value: object) -> bool:
    """Whether a value is a number, or a tuple of numbers."""
    parts = value if type(value) is tuple else (value,)
    return bool(parts) and all(type(part) in (int, float) for part in parts)


def varied(guards: Guards) -> list[Slot]:
    """The slots of guards that expect another number than the current one."""
    return [slot for group in guards.groups for slot in _varied_of(group)]


def _varied_of(group: Group) -> Iterator[Slot]:
    owner = fetched(group.fetch)
    if owner is None or (group.kind != ATTRIBUTE and type(owner) not in _PLAIN_CONTAINERS):
        return
    values = group.current()
    if values is None or len(values) != len(group.guards):
        return
    keys = _keys(owner) if group.kind == CONTENTS else group.keys
    kind = ITEM if group.kind == CONTENTS else group.kind
    # Of contents, the type and the keys of a dictionary come first.
    offset = len(group.guards) - len(keys)
    for key, guard, value in zip(keys, group.guards[offset:], values[offset:], strict=True):
        is_other = _is_other_number(guard.expected, value) and not guard.accepts(value)
        if is_other and (kind == ITEM or _stores(owner, str(key))):
            yield Slot(owner, kind, key, guard.path, fetch=group.fetch)


def _keys(container: object) -> list[object]:
    if isinstance(container, dict):
        return list(container)
    return list(range(len(container))) if isinstance(container, list) else []


def may_vary(slot: Slot) -> bool:
    """Whether a slot still holds a number, or a tuple of numbers, and assigning it runs no code of the user's.

    The owner may have lost the attribute since the slot was found: one of that name on its class is not in the slot.
    """
    owner = fetched(slot.owner)
    if owner is None:
        return False
    is_plain = (
        _stores(owner, slot.key) if slot.kind == ATTRIBUTE else type(owner) in _PLAIN_CONTAINERS
    )
    return is_plain and is_numeric(slot.get())


def _stores(owner: object, name: str) -> bool:
    """Whether an object itself stores an attribute, and runs no code when it is assigned."""
    if isinstance(owner, types.CellType):
        return True
    if type(owner).__setattr__ not in _PLAIN_ASSIGNMENTS:
        return False
    of_class = inspect.getattr_static(type(owner), name, None)
    return isinstance(of_class, types.MemberDescriptorType) or (
        name in getattr(owner, "__dict__", ()) and not hasattr(type(of_class), "__set__")
    )


def _is_other_number(expected: object, value: object) -> bool:
    """Whether a guard expects a number, and the value is another number of the same type."""
    return (
        isinstance(expected, Value)
        and expected.type in (int, float)
        and type(value) is expected.type
    )
