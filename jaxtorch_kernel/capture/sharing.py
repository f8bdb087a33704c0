"""Which inputs of a program share a storage: found during the trace, checked before each run.

A program takes each storage once, even if the code reaches it as an argument and by several names. Inputs that shared a
storage in the trace must share it at each run. Conversely, suppose that an argument and a tensor that the program reads
by name, or two such tensors, share a storage now but did not in the trace. If the program writes to one of the two, it
may not run: it would treat them as two storages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..storage.buffer import Buffer, buffer_of
from .dependencies.record import Record
from .errors import CaptureError
from .signature import Arguments, Leaves


class Sharing:
    """The storages that the inputs of one program share. Created at the end of its trace.

    Args:
        buffers: the inputs' buffers; those of arguments come first.
        indices: the index of each argument among the leaves of a call.
        written: inputs that the program writes, or whose memory is donated to it.
        record: knows the names of each buffer.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        indices: list[int],
        written: Sequence[int],
        record: Record,
    ):
        self._indices = indices
        count = len(indices)
        self._named = [
            (i, reference)
            for i, buffer in enumerate(buffers[:count])
            for reference in record.buffers.all_of(buffer)
        ]
        self._other_names = [
            (i, reference)
            for i, buffer in enumerate(buffers[count:])
            for reference in record.buffers.all_of(buffer)[1:]
        ]
        self.written = list(written)
        self._tied, self._bare = record.tied, record.bare

    @property
    def is_trivial(self) -> bool:
        """Whether nothing about the arguments needs a check."""
        return not (self.written or self._named or self._tied or self._bare)

    def names_agree(self, buffers: Sequence[Buffer]) -> bool:
        """Whether each buffer still has all its names, and is another one than the others if the program writes.

        Raises AttributeError if a tensor no longer exists.
        """
        if self.written and len(set(map(id, buffers))) < len(buffers):
            return False
        return not self._other_names or all(
            reference() is buffers[i] for i, reference in self._other_names
        )

    def arguments_agree(
        self, leaves: Leaves, named: Sequence[Buffer], call: Arguments | None = None
    ) -> bool:
        """Whether the arguments share memory with buffers read by name exactly as they did in the trace.

        Arguments whose `.grad` the code reads or sets must also be in the state that they had in the trace.

        Args:
            leaves: the leaves that the program takes.
            named: the buffers that the program reads by name.
            call: the arguments, if `leaves` are not the caller's own.
        """
        if self.is_trivial:
            return True
        passed = leaves if call is None else call.caller_leaves
        if any(passed[index] is not reference() for index, reference in self._tied):
            return False
        if not all(is_bare(passed[index]) for index in self._bare):
            return False
        count = len(self._indices)
        if not count and (call is None or not call.copied):
            return True
        buffers: list[Buffer] = [leaves[index].untyped_storage().buffer for index in self._indices]
        try:
            if not all(reference() is buffers[i] for i, reference in self._named):
                return False
        except AttributeError:
            return False
        if not self.written:
            return True
        written = {id(named[i - count]) for i in self.written if i >= count}
        parts = [buffer_of(call.caller_leaves[i]) for i in call.copied] if call is not None else []
        if any(id(buffer) in written for buffer in (*buffers, *parts)):
            return False
        written_arguments = {id(buffers[i]) for i in self.written if i < count}
        return not written_arguments or written_arguments.isdisjoint(map(id, named))


def is_bare(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf that has no gradient and no hooks."""
    hooked = tensor._backward_hooks or tensor._post_accumulate_grad_hooks
    return tensor.is_leaf and tensor.grad is None and not hooked


class NeedsOffset(CaptureError):
    """Arguments that are views of memory that the code also writes: their offsets are part of the program."""

    def __init__(self, indices: set[int]):
        super().__init__(
            "an argument is a view of memory that the captured code writes to",
            "Pass the whole tensor.",
        )
        self.indices = indices


def check_parts(
    arguments: Arguments,
    buffers: Sequence[Callable[[], Buffer | None]],
    indices: list[int],
    written: Sequence[int],
) -> None:
    """Refuse copied arguments whose memory the code writes, through the argument or by another name.

    Raises:
        NeedsOffset: if there are any; it has their indices.
    """
    refused = {indices[i] for i in written if i < len(indices)} & arguments.copied
    changed = {id(buffers[i]()) for i in written}
    refused |= {i for i in arguments.copied if id(buffer_of(arguments.caller_leaves[i])) in changed}
    if refused:
        raise NeedsOffset(refused)
