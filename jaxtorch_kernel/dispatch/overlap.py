"""Writes to overlapping memory: refused where torch refuses them, with torch's error.

Each of torch's CPU kernels has its own rule: most refuse a write to an expanded tensor or to a part of their input,
`fill_` accepts the former, matrix products accept both. So the CPU kernel is called with memory that overlaps in the
same way. Only calls that some kernel might refuse pay for this: tensors that share a buffer, and targets with a stride
of 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from ..storage.buffer import Buffer, buffer_of
from .asked import _MOST_ZEROS, cpu_error
from .call import Call
from .schema import Signature

Tensor = torch.Tensor


def check_targets(
    op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...], targets: list[Tensor]
) -> None:
    """Raise the CPU's error for a target of which one place in memory is several elements."""
    if any(map(_repeats, targets)):
        _ask(op, signature, args)


class Known:
    """The overlaps that the CPU took of one operator's calls."""

    def __init__(self) -> None:
        self._keys: set[Any] = set()

    def check(self, op: torch._ops.OpOverload, signature: Signature, call: Call) -> None:
        """Raise the CPU's error for a call whose tensors, some of which share a buffer, overlap."""
        first = call.tensors[0].storage_offset()
        offsets = [t.storage_offset() - first for t in call.tensors]
        key = (*call.key, *offsets)
        if key in self._keys:
            return
        if _overlapping(call):
            _ask(op, signature, call.args)
        if len(self._keys) >= 4096:
            self._keys.clear()
        self._keys.add(key)


def _repeats(t: Tensor) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride(), strict=True))


def _span(t: Tensor) -> tuple[int, int]:
    """First byte and end in the buffer's memory."""
    last = sum(int((n - 1) * s) for n, s in zip(t.shape, t.stride(), strict=True))
    begin = int(t.storage_offset()) * t.itemsize
    return begin, begin + (last + 1) * t.itemsize


def _overlapping(call: Call) -> bool:
    """Whether the memory of two tensors overlaps, each of which fills a stretch of it: torch looks at no others."""
    of_buffer: dict[int, list[tuple[tuple[int, int], Tensor]]] = {}
    for t, buffer in zip(call.tensors, call.buffers, strict=True):
        if t.numel():
            of_buffer.setdefault(id(buffer), []).append((_span(t), t))
    for spans in of_buffer.values():
        dense = [(span, t) for span, t in spans if span[1] - span[0] == t.numel() * t.itemsize]
        dense.sort(key=lambda pair: pair[0])
        for ((_, end), a), ((begin, _), b) in pairwise(dense):
            if begin < end and (a.numel() <= _MOST_ZEROS or not _same(a, b)):
                return True
    return False


def _same(a: Tensor, b: Tensor) -> bool:
    # Of large tensors that are each other most kernels take both (`x.mul_(x)`), and asking would cost what they do.
    return _span(a) == _span(b) and a.stride() == b.stride()


def _ask(op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...]) -> None:
    memory: dict[int, torch.UntypedStorage] = {}

    def like(a: Tensor, written: bool) -> Tensor:
        buffer: Buffer = buffer_of(a)
        storage = memory.get(id(buffer))
        if storage is None:
            whole = torch.zeros(buffer.spec.nbytes, dtype=torch.uint8, device="cpu")
            storage = memory[id(buffer)] = whole.untyped_storage()
        empty = torch.empty(0, dtype=a.dtype, device="cpu")
        return empty.set_(storage, a.storage_offset(), a.shape, a.stride())

    error = cpu_error(op, signature, signature.complete(args, {}), like)
    if error is not None and "single memory location" in str(error):
        raise error
