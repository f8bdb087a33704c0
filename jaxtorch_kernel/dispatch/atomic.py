"""Running a program and storing what it gives, with no place between for Ctrl-C.

A program that writes takes its inputs' memory (donation): between XLA's call and the last store the data is nowhere but
in the outputs. Python looks for signals between bytecodes; here one call in C does all of it, so that there are none.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, starmap
from typing import Any

import jax

from ..storage.buffer import Buffer

_set_array = vars(Buffer)["array"].__set__
_consume = deque[Any](maxlen=0).extend


def run_into(execute: Callable[..., Any], operands: list[Any], buffers: list[Buffer]) -> None:
    """Call `execute(*operands)` and store its outputs in `buffers`, in order."""
    if not buffers:  # `map` would end before it runs the program, which may print
        execute(*operands)
    _consume(map(_set_array, buffers, chain.from_iterable(starmap(execute, (operands,)))))


def store(buffers: Iterable[Buffer], arrays: Iterable[Any]) -> None:
    """Set the buffers' arrays, all or none of them."""
    _consume(map(_set_array, buffers, arrays))


def own(buffer: Buffer) -> None:
    """Make sure that nobody but the buffer holds its array, which is about to be donated."""
    array = buffer.array
    # The buffer, the local name, and getrefcount's own argument.
    if sys.getrefcount(array) > 3 and not isinstance(array, jax.core.Tracer):
        buffer.array = array.copy()


class _GivenUp:
    """In the place of an array that a program has taken: whatever is asked of it says so."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            "this tensor was given up: a call of a captured function took its memory (`donate`). Use what the call "
            "returned, or leave the argument's name out of `donate`."
        )


def give_up(buffer: Buffer) -> None:
    """Say of a buffer that was donated, and not written, that its data is gone; XLA may have left it."""
    if buffer.array.is_deleted():
        buffer.array = _GivenUp()
