"""A window: the calls that were recorded since the last flush.

A window whose program is compiled runs as that program. Every other window runs call by call (`run.py`).
"""

from __future__ import annotations

from types import CodeType

import jax

from ..dispatch.numbers import KindedNumber
from ..dispatch.operands import Offsets
from ..dispatch.program import Program
from ..programs.site import site_of
from ..programs.stats import Site
from ..storage.buffer import Buffer
from ..storage.pending import index_of
from .node import Node
from .policy import Policy
from .run import Run, start

# The class of arrays with values.
_Array: type | None = None
Stack = tuple[tuple[CodeType, int], ...]


class Window:
    """The calls since the last flush.

    Attributes:
        node: the sequence of calls; None once it is being run.
        leader: the program of the first call, as long as another call of it may be a repetition.
        stack: where the first call was made.
        comparisons: how many calls of `leader` came later.
        buffers: for each result the buffer that it was made for; None if the buffer was overwritten.
        inputs: the arrays that came from outside.
        indices: the index of each input, by the id of its array.
        numbers: the numbers of the calls.
        offsets: of their views that take starts, for each call that has such views.
        repeated: whether the first call occurred again, from the same stack.
    """

    __slots__ = (
        "_run",
        "buffers",
        "comparisons",
        "indices",
        "inputs",
        "leader",
        "node",
        "numbers",
        "offsets",
        "repeated",
        "stack",
    )

    def __init__(self, node: Node | None, leader: Program | None = None, stack: Stack = ()):
        self.node, self.leader, self.stack = node, leader, stack
        self.buffers: list[Buffer | None] = []
        self.inputs: list[jax.Array] = []
        self.indices: dict[int, int] = {}
        self.numbers: list[KindedNumber] = []
        self.offsets: list[Offsets] = []
        self.repeated = False
        self.comparisons = 0
        self._run: Run | None = None

    @property
    def unfinished(self) -> bool:
        """Whether a flush was interrupted."""
        return self._run is not None

    def index(self, buffer: Buffer) -> int | None:
        """The index of a buffer's value; None if it cannot be an operand of a recorded call."""
        if buffer.pending:
            return index_of(buffer)
        array = buffer.array
        index = self.indices.get(id(array))
        return self.add_input(array) if index is None else index

    def add_input(self, array: jax.Array) -> int | None:
        """The index of a new input; None for an array without values: a tracer, or one that was donated."""
        global _Array
        if _Array is None:
            _Array = type(jax.numpy.zeros(()))
        if type(array) is not _Array or array.is_deleted():
            return None
        index = ~len(self.inputs)
        self.inputs.append(array)
        self.indices[id(array)] = index
        return index

    def site(self) -> Site | None:
        """The line of the first call that has one: a backward pass has none."""
        origins = (buffer.origin for buffer in self.buffers if buffer is not None)
        caller = next((origin for origin in origins if origin is not None), None)
        return None if caller is None else site_of(caller)

    def drop_inputs(self, count: int) -> None:
        """Keep only this many inputs. Others belong to a call that was not recorded in the end."""
        for array in self.inputs[count:]:
            self.indices.pop(id(array), None)
        del self.inputs[count:]

    def finish(self, policy: Policy) -> None:
        """Run the calls, or continue to run them."""
        if self._run is None:
            assert self.node is not None
            self._run = start(self, self.node, policy)
        self.node = None
        try:
            self._run.finish()
        except Exception:
            self._run.give_up()
            self._run = None
            raise
        self._run = None
        self.inputs.clear()
        self.buffers.clear()
