"""Checks that a container that the code reached by several paths is still one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from .effects import Assignment
from .fetch import GONE, Fetch, fetched
from .guard import Check, Group
from .reads import ATTRIBUTE, ITEM
from .tokens import CONTAINERS


def identity_checks(
    groups: Mapping[tuple[int, str, str], Group], assignments: Iterable[Assignment]
) -> Iterator[Check]:
    """Checks that the containers that the code reached by several paths are still the same object on each."""
    paths: dict[int, dict[str, Fetch]] = {}
    for (owner, kind, _), group in groups.items():
        if kind != ATTRIBUTE and group.guards and fetched(group.fetch) is not None:
            path = group.guards[0].path
            where = container_path(group.fetch(), kind, path) or path
            paths.setdefault(owner, {}).setdefault(where, group.fetch)
    for assignment in assignments:
        slot = assignment.slot
        container = slot.owner()
        if isinstance(container, CONTAINERS) and id(container) in paths:
            where = container_path(container, ITEM, slot.path) or slot.path
            paths[id(container)].setdefault(where, slot.owner)
    return (_identity_check(fetches) for fetches in paths.values() if len(fetches) > 1)


def container_path(owner: object, kind: str, path: str) -> str:
    """The path of an item's container: a container with two paths may be two later, so that each path has guards."""
    return path.rpartition("[")[0] if kind == ITEM and isinstance(owner, CONTAINERS) else ""


def _identity_check(fetches: dict[str, Callable[[], object]]) -> Check:
    """A check that a container with several paths is still a single object."""

    def holds() -> bool:
        try:
            return len({id(fetch()) for fetch in fetches.values()}) == 1
        except GONE:
            return False

    first, second, *_ = fetches
    return Check(first, f"is no longer the same object as {second}", holds)
