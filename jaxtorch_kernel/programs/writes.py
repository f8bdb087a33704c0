"""Which buffers running programs write. A thread that read a donated array waits for the new one, without a lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import get_ident

import jax

from ..storage.buffer import Buffer

# What XLA and JAX raise for an array that was donated, and for a tracer. Both also raise them for other reasons.
DONATED_ERRORS = (RuntimeError, ValueError, TypeError)

writing: dict[int, Sequence[Buffer]] = {}  # by thread: the buffers that its running program writes
_POLL = 50e-6  # seconds between two checks for the end of another thread's write


def is_replaced(buffer: Buffer, array: jax.Array) -> bool:
    """Whether another thread has given a buffer an array after this one, which was donated. Waits while it writes."""
    while buffer.array is array and _is_written(buffer):
        time.sleep(_POLL)
    return buffer.array is not array


def _is_written(buffer: Buffer) -> bool:
    this_thread = get_ident()
    return any(
        target is buffer
        for thread, targets in list(writing.items())
        if thread != this_thread
        for target in targets
    )
