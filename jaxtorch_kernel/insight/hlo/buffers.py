"""The memory layout of one run of a program, as XLA planned it.

An allocation is a block of memory that exists for the whole run. Each argument, result and constant has its own
allocation. Intermediate values share a few allocations, at offsets that are free during their lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .module import Module
from .wire import fields


@dataclass(frozen=True)
class Held:
    """A value in an allocation.

    Attributes:
        instruction: the name of the instruction that computes it; "" if it was removed.
    """

    instruction: str
    offset: int
    size: int


@dataclass(frozen=True)
class Allocation:
    """A block of memory.

    Attributes:
        kind: "argument", "result", "constant", "temporary", or "local" (thread-local).
        held: the values placed in it, the largest first.
    """

    index: int
    kind: str
    size: int
    held: tuple[Held, ...]


def read_buffers(assignment: bytes, module: Module) -> list[Allocation]:
    """The allocations of a serialized `BufferAssignmentProto`, the largest first; none if the proto is empty."""
    makers: dict[int, str] = {}
    allocations: list[list[tuple[int, Any]]] = []
    for key, value in fields(assignment):
        if key == 1:
            own = dict(fields(value))
            place = dict(fields(own.get(3, b""))).get(4, 0)
            maker = module.instructions.get(place)
            makers[own.get(1, 0)] = "" if maker is None else maker.name
        elif key == 3:
            allocations.append(list(fields(value)))
    found = [_allocation(each, makers) for each in allocations]
    return sorted(found, key=lambda a: -a.size)


def _allocation(data: list[tuple[int, Any]], makers: dict[int, str]) -> Allocation:
    own = dict(data)
    held = []
    for key, value in data:
        if key == 9:
            assigned = dict(fields(value))
            name = makers.get(assigned.get(1, 0), "")
            held.append(Held(name, assigned.get(2, 0), assigned.get(3, 0)))
    held.sort(key=lambda h: (-h.size, h.offset))
    kinds = {5: "argument", 12: "constant", 3: "local", 7: "result"}
    kind = next((name for field, name in kinds.items() if own.get(field)), "temporary")
    return Allocation(own.get(1, 0), kind, own.get(2, 0), tuple(held))
