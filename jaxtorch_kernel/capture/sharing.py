"""Which inputs of a program share a storage: found during the trace, checked before each run.

A program takes each storage once, even if the code reaches it as an argument and by several names. Inputs that shared a
storage in the trace must share it at each run. An argument must not share the storage of a tensor that the program
reads by name, unless it did in the trace, if one of the two is written: the program would treat it as two storages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..storage.buffer import Buffer, buffer_of
from .dependencies.record import Record
from .errors import CaptureError
from .signature import Arguments


class Sharing:
    """Made when a trace is over.

    Args:
        cells: the inputs' cells; the arguments' come first.
        places: of the arguments, among the leaves of a call.
        written: inputs whose memory the program writes or takes.
        record: knows the names of each cell.
    """

    def __init__(
        self, cells: Sequence[Any], places: list[int], written: Sequence[int], record: Record
    ):
        self._places = places
        count = len(places)
        self._named = [
            (i, reference)
            for i, cell in enumerate(cells[:count])
            for reference in record.all_of(cell)
        ]
        self._twins = [
            (i, reference)
            for i, cell in enumerate(cells[count:])
            for reference in record.all_of(cell)[1:]
        ]
        self.written = list(written)
        self._tied, self._bare = record.tied, record.bare

    @property
    def is_trivial(self) -> bool:
        """Whether there is nothing to ask of the arguments."""
        return not (self.written or self._named or self._tied or self._bare)

    def cells_agree(self, cells: Sequence[Any]) -> bool:
        """Whether each cell is found under all the names that it had. Raises AttributeError where one is gone."""
        return not self._twins or all(reference() is cells[i] for i, reference in self._twins)

    def arguments_agree(
        self, leaves: Sequence[Any], cells: Sequence[Any], call: Arguments | None = None
    ) -> bool:
        """Whether the arguments share memory with what is read by name where they did, and nowhere else.

        And whether those whose `.grad` the code reads or sets are as they were in the trace.
        """
        if self.is_trivial:
            return True
        own = leaves if call is None else call.own
        if any(own[place] is not reference() for place, reference in self._tied):
            return False
        if not all(is_bare(own[place]) for place in self._bare):
            return False
        count = len(self._places)
        if not count and (call is None or not call.copied):
            return True
        buffers: list[Buffer] = [leaves[place].untyped_storage().buffer for place in self._places]
        try:
            if not all(reference() is buffers[i] for i, reference in self._named):
                return False
        except AttributeError:
            return False
        if not self.written:
            return True
        written = {id(cells[i - count]) for i in self.written if i >= count}
        parts = [buffer_of(call.own[i]) for i in call.copied] if call is not None else []
        if any(id(buffer) in written for buffer in (*buffers, *parts)):
            return False
        taken = {id(buffers[i]) for i in self.written if i < count}
        return not taken or taken.isdisjoint(map(id, cells))


def is_bare(tensor: Any) -> bool:
    """Whether a tensor is a leaf that has no gradient and no hooks."""
    hooked = tensor._backward_hooks or tensor._post_accumulate_grad_hooks
    return tensor.is_leaf and tensor.grad is None and not hooked


class NeedsPlace(CaptureError):
    """Arguments that are views of memory that the code also writes: their offsets are part of the program."""

    def __init__(self, places: set[int]):
        super().__init__(
            "an argument is a view of memory that the captured code writes to",
            "Pass the whole tensor.",
        )
        self.places = places


def check_parts(
    arguments: Arguments,
    cells: Sequence[Callable[[], Any]],
    places: list[int],
    written: Sequence[int],
) -> None:
    """Refuse copied arguments whose memory the code writes, through the argument or by another name.

    Raises:
        NeedsPlace: if there are any; it names them.
    """
    found = {places[i] for i in written if i < len(places)} & arguments.copied
    changed = {id(cells[i]()) for i in written}
    found |= {i for i in arguments.copied if id(buffer_of(arguments.own[i])) in changed}
    if found:
        raise NeedsPlace(found)
