"""Which buffers running programs write, and what a thread does that has read an array just before it was donated.

It waits until the write has ended, and reads the buffer again. So reading needs no lock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import get_ident
from typing import Never

import jax
import numpy as np

from ..base.jax_private import FAILURES
from ..storage.buffer import Buffer

# What XLA and JAX raise for an array that was donated, and for a tracer. Both also raise them for other reasons: a
# program that fails raises one of them too.
DONATED_ERRORS = (RuntimeError, ValueError, TypeError, *FAILURES)

writing: dict[int, Sequence[Buffer]] = {}  # by thread: the buffers that its running program writes
_POLL = 50e-6  # seconds between two checks for the end of another thread's write


class Unavailable:
    """Replaces an array that no longer exists: any use of it is an error, with this message."""

    def __init__(self, message: str):
        self.__message = message

    def __getattr__(self, name: str) -> Never:
        raise RuntimeError(self.__message)


def is_deleted(array: jax.Array | np.ndarray | Unavailable) -> bool:
    """Whether an array was donated, and its buffer not marked so."""
    return not isinstance(array, np.ndarray | Unavailable) and array.is_deleted()


def is_replaced(buffer: Buffer, array: object) -> bool:
    """Whether another thread has given a buffer another array than this one. Waits while it writes the buffer."""
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
