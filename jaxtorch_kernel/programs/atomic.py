"""Running a program and storing its results in one step that Ctrl-C cannot interrupt.

A program that writes has its inputs donated: between the XLA call and the last store, the data exists only in the
outputs. Python checks for signals between bytecodes; here a single C call does everything, so there are none.

Another thread may read a buffer in the meantime and get an array that was donated, which XLA rejects. It then calls
`replaced`, which waits for the write, and reads again. So reading needs no lock.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, starmap
from threading import get_ident
from typing import Any

import jax

from ..storage.buffer import Buffer

_set_array = vars(Buffer)["array"].__set__
_consume = deque[Any](maxlen=0).extend
_POLL = 50e-6  # seconds between two looks at a write of another thread
_writing: dict[int, Sequence[Buffer]] = {}  # thread -> what its program will give new arrays

# What XLA and JAX raise for an array whose memory a program has taken. Both also raise them for other reasons.
TAKEN = (RuntimeError, ValueError)


def run_into(execute: Callable[..., Any], operands: list[Any], buffers: list[Buffer]) -> None:
    """Call `execute(*operands)` and store its outputs in `buffers`, in order."""
    if not buffers:  # `map` would end before it runs the program, which may print
        execute(*operands)
    thread = get_ident()
    outer = _writing.get(thread)  # of a program that calls Python, which runs this one
    _writing[thread] = buffers if outer is None else [*outer, *buffers]
    try:
        _consume(map(_set_array, buffers, chain.from_iterable(starmap(execute, (operands,)))))
    finally:
        if outer is None:
            _writing.pop(thread, None)
        else:
            _writing[thread] = outer


def replaced(buffers: Iterable[Buffer], arrays: Iterable[Any]) -> bool:
    """Whether a call failed because another thread wrote to a buffer after its array was read: to be made again.

    Waits for a write that is under way.
    """
    found = False
    for buffer, array in zip(buffers, arrays, strict=False):
        if isinstance(array, jax.core.Tracer | _Donated) or not array.is_deleted():
            continue
        while buffer.array is array and _is_written(buffer):
            time.sleep(_POLL)
        if buffer.array is array:  # its data is lost
            return False
        found = True
    return found


def _is_written(buffer: Buffer) -> bool:
    own = get_ident()
    return any(
        target is buffer
        for thread, targets in list(_writing.items())
        if thread != own
        for target in targets
    )


def store(buffers: Iterable[Buffer], arrays: Iterable[Any]) -> None:
    """Set the buffers' arrays, all or none of them."""
    _consume(map(_set_array, buffers, arrays))


def own(buffer: Buffer) -> None:
    """Make sure that only the buffer holds its array, which is about to be donated."""
    array = buffer.array
    # The buffer, the local name, and getrefcount's own argument.
    if sys.getrefcount(array) > 3 and not isinstance(array, jax.core.Tracer):
        try:
            buffer.array = array.copy()
        except TAKEN:
            if not replaced([buffer], [array]):
                raise
            del array
            own(buffer)


class _Donated:
    """Stands for the array of a donated buffer: any use of it is an error."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            "this tensor was donated to a compiled function, and its memory has been reused. Use what the call "
            "returned, or leave the argument's name out of `donate`."
        )


def mark_donated(buffer: Buffer) -> None:
    """Note that a buffer was donated and not written. XLA may have left its data alone; then it stays."""
    if buffer.array.is_deleted():
        buffer.array = _Donated()  # type: ignore[assignment]  # raises wherever it is used
