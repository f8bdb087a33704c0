"""Writes to overlapping memory: torch's error wherever torch refuses them.

Each of torch's CPU kernels has its own rule: most refuse a write to an expanded tensor or to a part of their input,
`fill_` accepts the former, matrix products accept both. So the CPU kernel is called with memory that overlaps in the
same way. This is done only for calls that some kernel might refuse: those with tensors that share a buffer, or with
targets that have a stride of 0.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from ..base.torch_private import OpOverload
from ..storage.buffer import Buffer, buffer_of
from .call import Call
from .cpu_errors import MOST_ELEMENTS, MOST_ZEROS, cpu_error
from .schema import Arguments, Signature

Tensor = torch.Tensor


def check_targets(
    op: OpOverload, signature: Signature, args: Arguments, targets: list[Tensor]
) -> None:
    """Raise the CPU's error for a target whose elements share a location in memory."""
    if any(map(_is_expanded, targets)):
        _raise_overlap_error(op, signature, args)


class OverlapChecks:
    """Checks the calls of one operator whose tensors share a buffer, and remembers those that the CPU accepted."""

    def __init__(self) -> None:
        self._accepted: set[tuple[object, ...]] = set()

    def check(self, op: OpOverload, signature: Signature, call: Call) -> None:
        """Raise the CPU's error if it refuses the way in which the tensors overlap.

        Tensors with more elements together are not checked: the CPU kernel would need memory for all of them.
        """
        first = call.tensors[0].storage_offset()
        offsets = [t.storage_offset() - first for t in call.tensors]
        key = (*call.key, *offsets)
        if key in self._accepted:
            return
        if _overlapping(call) and sum(t.numel() for t in call.tensors) <= MOST_ELEMENTS:
            _raise_overlap_error(op, signature, call.args)
        if len(self._accepted) >= 4096:
            self._accepted.clear()
        self._accepted.add(key)


def _is_expanded(t: Tensor) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride(), strict=True))


def _span(t: Tensor) -> tuple[int, int]:
    """The range of bytes in the buffer from the first element to the last."""
    last = sum(int((n - 1) * s) for n, s in zip(t.shape, t.stride(), strict=True))
    begin = int(t.storage_offset()) * t.itemsize
    return begin, begin + (last + 1) * t.itemsize


def _overlapping(call: Call) -> bool:
    """Whether the memory of two dense tensors overlaps. torch does not check tensors with gaps."""
    of_buffer: dict[int, list[tuple[tuple[int, int], Tensor]]] = {}
    for t, buffer in zip(call.tensors, call.buffers, strict=True):
        if t.numel():
            of_buffer.setdefault(id(buffer), []).append((_span(t), t))
    for spans in of_buffer.values():
        dense = [(span, t) for span, t in spans if span[1] - span[0] == t.numel() * t.itemsize]
        dense.sort(key=lambda pair: pair[0])
        for ((_, end), a), ((begin, _), b) in pairwise(dense):
            if begin < end and (a.numel() <= MOST_ZEROS or not _same(a, b)):
                return True
    return False


def _same(a: Tensor, b: Tensor) -> bool:
    # Most kernels accept one tensor twice (`x.mul_(x)`). For large ones the check would take as long as the operator.
    return _span(a) == _span(b) and a.stride() == b.stride()


def _raise_overlap_error(op: OpOverload, signature: Signature, args: Arguments) -> None:
    """Call the CPU kernel with memory that overlaps in the same way, and raise its error about that."""
    memory: dict[int, torch.UntypedStorage] = {}

    def like(a: Tensor, written: bool) -> Tensor:
        buffer: Buffer = buffer_of(a)
        storage = memory.get(id(buffer))
        if storage is None:
            whole = torch.zeros(buffer.spec.nbytes, dtype=torch.uint8, device="cpu")
            storage = memory[id(buffer)] = whole.untyped_storage()
        empty = torch.empty(0, dtype=a.dtype, device="cpu")
        return empty.set_(storage, a.storage_offset(), a.shape, a.stride())

    error = cpu_error(op, signature, signature.complete(args), like)
    if error is not None and "single memory location" in str(error):
        raise error
