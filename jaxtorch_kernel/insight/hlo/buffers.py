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
class AssignedValue:
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
        values: the values placed in it, the largest first.
    """

    index: int
    kind: str
    size: int
    values: tuple[AssignedValue, ...]


def read_buffers(assignment: bytes, module: Module) -> list[Allocation]:
    """The allocations of a serialized `BufferAssignmentProto`, the largest first; none if the proto is empty."""
    producers: dict[int, str] = {}
    allocations: list[list[tuple[int, Any]]] = []
    for key, value in fields(assignment):
        if key == 1:
            buffer = dict(fields(value))
            producer_id = dict(fields(buffer.get(3, b""))).get(4, 0)
            producer = module.instructions.get(producer_id)
            producers[buffer.get(1, 0)] = "" if producer is None else producer.name
        elif key == 3:
            allocations.append(list(fields(value)))
    return sorted((_allocation(each, producers) for each in allocations), key=lambda a: -a.size)


def _allocation(data: list[tuple[int, Any]], producers: dict[int, str]) -> Allocation:
    message = dict(data)
    values = []
    for key, value in data:
        if key == 9:
            assigned = dict(fields(value))
            name = producers.get(assigned.get(1, 0), "")
            values.append(AssignedValue(name, assigned.get(2, 0), assigned.get(3, 0)))
    values.sort(key=lambda v: (-v.size, v.offset))
    kind_of_field = {5: "argument", 12: "constant", 3: "local", 7: "result"}
    kind = next((kind for field, kind in kind_of_field.items() if message.get(field)), "temporary")
    return Allocation(message.get(1, 0), kind, message.get(2, 0), tuple(values))
