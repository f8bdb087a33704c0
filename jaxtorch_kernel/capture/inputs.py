"""The order of a captured program's inputs: arguments, then what is read by name, then what the code itself created."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..storage.buffer import Buffer
from .captured import Captured
from .dependencies.labels import CallArguments
from .dependencies.record import Record
from .signature import Arguments


def arguments_first(
    captured: Captured,
    arguments: Arguments,
    record: Record,
    is_created: Callable[[Buffer], bool] = lambda buffer: False,
    last: Collection[Buffer] = (),
) -> tuple[Captured, list[int], list[Buffer]]:
    """Sort the inputs of what was captured.

    Args:
        captured: what was captured.
        arguments: those of the call that was traced.
        record: knows which buffers are found through a tensor that the code read by name; these precede the others.
        is_created: whether the code created a buffer, so that only its initial value is an input.
        last: those that come last, if the order is free: an earlier trace created them.

    Returns:
        The same function with its inputs in order; the index of each argument among the leaves of a call; the
        buffers that the code created, which come last.
    """
    buffers: list[Buffer] = []
    for reference in captured.buffers:
        buffer = reference()
        assert buffer is not None  # an argument refers to it, or what the code read it through
        buffers.append(buffer)
    index_of = arguments.buffer_indices()
    argument = [index_of.get(id(buffer)) for buffer in buffers]
    created = list(map(is_created, buffers))
    late = set(map(id, last))

    def position(i: int) -> tuple[bool, bool, int, bool, bool]:
        buffer = buffers[i]
        unnamed = not record.buffers.is_named(buffer)
        return created[i], argument[i] is None, argument[i] or 0, unnamed, id(buffer) in late

    order = sorted(range(len(buffers)), key=position)
    indices = [index for i in order if (index := argument[i]) is not None and not created[i]]
    captured = captured.reordered(order)
    call = CallArguments(arguments.leaves, arguments.structure)
    if record.host_numbers is not None:
        names = [name for name, _ in call.named_leaves(record.function)]
        for path, number in record.host_numbers.named_operands(names):
            record.labels.add_number(path, number)
    ordered = [buffers[i] for i in order]
    captured.names, captured.roles = record.labels.of_inputs(ordered, record.function, call)
    return captured, indices, [buffers[i] for i in order if created[i]]
