"""Running a program and storing its results in one step that Ctrl-C cannot interrupt.

A program that writes has its inputs donated: between the XLA call and the last store, the data exists only in the
outputs. Python checks for signals between bytecodes; here a single C call does everything, so there are none.

Another thread may read a buffer in the meantime and get an array that was donated, which XLA rejects. It then calls
`was_replaced`, which waits for the write, and reads the buffer again. So reading needs no lock.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, starmap
from threading import get_ident

import jax
import numpy as np

from ..base.jax_private import checks_values
from ..storage.buffer import Buffer
from ..storage.placement import copied
from . import untraceable
from .writes import DONATED_ERRORS, Unavailable, is_deleted, is_replaced, writing

_set_array = vars(Buffer)["array"].__set__
# A program with its operands. Calling it by `_launch` runs no Python.
Launch = partial[Sequence[jax.Array]]
_launch = partial.__call__
_consume = deque[None](maxlen=0).extend


def receiver() -> Buffer:
    """A buffer for one output of a program. `run_into` sets its array; nothing reads its spec."""
    return Buffer(None, None)  # type: ignore[arg-type]


def run_into(
    execute: Callable[..., Sequence[jax.Array]],
    operands: Sequence[jax.Array | np.ndarray],
    buffers: Sequence[Buffer],
) -> None:
    """Call `execute(*operands)` and store its outputs in `buffers`, in order."""
    if not buffers:  # `map` over no buffers would not run the program, which may print
        execute(*operands)
    _store_outputs(starmap(execute, (operands,)), buffers)


def run_all_into(launches: Iterator[Launch], buffers: Sequence[Buffer]) -> None:
    """Call the launches in order and store their outputs, at least one of each, in `buffers`, in order.

    If one fails, `launches` has only those after it left, and the buffers of those before it are written.
    """
    _store_outputs(map(_launch, launches), buffers)


def _store_outputs(outputs: Iterator[Sequence[jax.Array]], buffers: Sequence[Buffer]) -> None:
    """Store the outputs of programs, each of which runs when its outputs are asked for."""
    thread = get_ident()
    outer = writing.get(thread)  # this program may run in a Python callback of another
    writing[thread] = buffers if outer is None else [*outer, *buffers]
    try:
        _consume(map(_set_array, buffers, chain.from_iterable(outputs)))
    finally:
        if outer is None:
            writing.pop(thread, None)
        else:
            writing[thread] = outer


def was_replaced(buffers: Iterable[Buffer], arrays: Iterable[jax.Array | np.ndarray]) -> bool:
    """Whether a call failed because another thread wrote to a buffer after its array was read.

    If so, the call can be repeated: this waits for a write in progress.

    Raises:
        RuntimeError: it failed because an array is a tracer of a trace that has ended.
    """
    replaced = False
    for buffer, array in zip(buffers, arrays, strict=False):
        if isinstance(array, jax.core.Tracer):
            untraceable.check_open()
            continue
        if not is_deleted(array):
            continue
        if not is_replaced(buffer, array):  # its data is lost
            return False
        replaced = True
    return replaced


def kept_if_checked(
    operands: Sequence[jax.Array | np.ndarray], donated: Iterable[int]
) -> Sequence[jax.Array | np.ndarray]:
    """The operands of a program, with copies of those that it reuses if it may fail after it has run.

    JAX raises its error for NaN (`jax_debug_nans`) when the results are there, and the operands no longer are.
    """
    if not checks_values():
        return operands
    reused = set(donated)
    return [copied(a) if i in reused else a for i, a in enumerate(operands)]  # type: ignore[arg-type]  # buffers' arrays


def store(buffers: Iterable[Buffer], arrays: Iterable[jax.Array]) -> None:
    """Set the buffers' arrays, all or none of them."""
    _consume(map(_set_array, buffers, arrays))


def ensure_unshared(buffer: Buffer) -> None:
    """Copy the array of a buffer, which is about to be donated, if anything else also refers to it."""
    if not _is_shared(buffer):
        return
    array = buffer.array
    if isinstance(array, jax.core.Tracer):
        return
    try:
        buffer.array = copied(array)
    except DONATED_ERRORS:
        if not was_replaced([buffer], [array]):
            raise
        del array
        ensure_unshared(buffer)


def _is_shared(buffer: Buffer) -> bool:
    """Whether anything but the buffer refers to its array."""
    return sys.getrefcount(buffer.array) > _UNSHARED


# The references that `_is_shared` finds for an array that nothing else holds. Their number differs among Pythons: 3.14
# does not count a reference that is only on a frame's stack.
_UNSHARED = 0
_alone = receiver()
_alone.array = object()  # type: ignore[assignment]  # any object that nothing else refers to
while _is_shared(_alone):
    _UNSHARED += 1


_DONATED = (
    "this tensor was donated to a compiled function, and its memory has been reused. Use what the call "
    "returned, or leave the argument's name out of `donate`."
)


def mark_donated(buffer: Buffer) -> None:
    """Make later use of a donated buffer an error, unless XLA left its data intact."""
    if buffer.array.is_deleted():
        buffer.array = Unavailable(_DONATED)  # type: ignore[assignment]  # raises wherever it is used
