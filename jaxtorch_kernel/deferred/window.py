"""A window: the calls that were recorded since the last flush, and how they are run.

A window that is known runs as one compiled program (`plan.py`). Every other window runs call by call, by the programs
that its calls would have run at once. Either way it ends with its buffers settled: each has its array.

A flush can be interrupted by Ctrl-C at any bytecode. Each program stores its outputs in one step (`atomic.py`), and the
window notes what has run, so the next flush continues there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import CodeType

import jax
import numpy as np

from ..dispatch.executable import Run
from ..dispatch.numbers import KindedNumber, Scalar, number_operands
from ..dispatch.operands import Offsets, Operand
from ..dispatch.program import Program, compile_all
from ..programs import rng
from ..programs.atomic import receiver, run_into
from ..programs.errors import explain_buffer
from ..programs.site import site_of
from ..programs.stats import Site
from ..programs.writes import Unavailable
from ..storage.buffer import Buffer, spec_of
from ..storage.pending import index_of, settle
from ..storage.placement import copied
from .node import Node, Recorded
from .plan import Plan, written_from
from .policy import Policy

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
        self._run: _Run | None = None

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

    def _site(self) -> Site | None:
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
            run = _Run(self, self.node)
            found = policy.plan_for(
                self.node, run.live, self.numbers[: self.node.numbers], self._site
            )
            if found is not None:
                run.plan, run.number_values = found
            self._run = run
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


class _Run:
    """The state of a flush.

    Attributes:
        live: the indices of the results that somebody still holds.
        plan: the compiled program of the window; None to run call by call.
        number_values: the numbers that the plan takes.
        values: for each result a buffer that receives it; None for a result that was dropped.
        done: how many calls have run, call by call.
    """

    def __init__(self, window: Window, node: Node):
        self.window, self.node = window, node
        del window.buffers[node.results :]  # of a call that was interrupted
        self.live = _live(window.buffers)
        self.plan: Plan | None = None
        self.number_values: list[Scalar] = []
        self.values: list[Buffer | None] = [None] * node.results
        self.done = 0

    def finish(self) -> None:
        if self.plan is not None:
            self._run_plan(self.plan)
        else:
            self._run_calls()
        self._settle()

    # -- call by call ----------------------------------------------------------------------------------------------

    def _run_calls(self) -> None:
        path = self.node.path()
        with suppress(Exception):  # raised again where the call runs, after those before it
            compile_all(call.program for call in path if call.program.constant is None)
        last: dict[int, int] = {}
        for position, call in enumerate(path):
            last |= dict.fromkeys(call.operands, position)
        live = set(self.live)
        while self.done < len(path):
            position = self.done
            call = path[position]
            first = self.values[call.first]
            if first is None or first.array is None:  # else it ran before an interrupt
                self._run_call(call, position, last)
            for index in call.operands:
                if last[index] == position and index >= 0 and index not in live:
                    self.values[index] = None
            self.done += 1

    def _run_call(self, call: Recorded, position: int, last: dict[int, int]) -> None:
        program, inputs = call.program, call.program.operands
        indices = list(call.operands)
        key = self._array(indices.pop(0)) if program.lowering.random else None
        donated = set(inputs.donated())
        operands: list[Operand] = []
        for n, index in enumerate(indices, len(inputs.leading)):
            kept = last[index] > position or (index < 0 and _shared(self.window.inputs, [~index]))
            array = self._array(index)
            operands.append(copied(array) if n in donated and kept else array)
        if inputs.views:
            starts = inputs.starts(self.window.offsets[call.view])
            assert starts is not None
            operands.append(starts)
        numbers = self.window.numbers[call.number : call.number + inputs.number_count]
        if program.constant is not None and program.executable.call is None:
            filled = program.constant.array(numbers)
            if filled is not None:
                self.values[call.first] = Buffer(filled, program.constant.spec)
                return
        if numbers:
            operands += number_operands(inputs.number_kinds, numbers, inputs.sharding)
        count = len(program.result_specs())
        receivers = [receiver() for _ in range(count)]
        self.values[call.first : call.first + count] = receivers
        if key is None:
            self._launch(program, call.first, operands, receivers)
            return
        # The next key does not depend on this program, which may fail.
        following = receiver()
        following.array = rng.next_key(key, inputs.sharding)
        self.values[call.first + count] = following
        if program.noise is not None:
            operands[:0] = program.noise.blocks(key)
        else:
            operands.insert(0, key)
            receivers = [*receivers, receiver()]
        self._launch(program, call.first, operands, receivers)

    def _launch(
        self, program: Program, first: int, operands: list[Operand], receivers: list[Buffer]
    ) -> None:
        execute = program.executable.call or program.compiled()
        self._execute(execute, operands, receivers, first)

    def _execute(
        self, execute: Run, operands: list[Operand], receivers: list[Buffer], first: int
    ) -> None:
        """Run a program whose first result is `first`; an error names an operator and its line."""
        try:
            run_into(execute, operands, receivers)
        except jax.errors.JaxRuntimeError as error:
            made = next((b for b in self.window.buffers[first:] if b is not None), receivers[0])
            raise explain_buffer(error, made) from None

    def _array(self, index: int) -> jax.Array:
        if index < 0:
            return self.window.inputs[~index]
        value = self.values[index]
        assert value is not None
        return value.array

    # -- as one program --------------------------------------------------------------------------------------------

    def _run_plan(self, plan: Plan) -> None:
        first = self.values[plan.live[0]]
        if first is not None and first.array is not None:
            return  # it ran before an interrupt
        made = [receiver() for _ in plan.live]
        for index, value in zip(plan.live, made, strict=True):
            self.values[index] = value
        shared = _shared(self.window.inputs, plan.donated)
        operands: list[Operand] = [*self.window.inputs[: plan.input_count]]
        for n in shared:
            operands[n] = copied(self.window.inputs[n])
        operands += plan.other_operands(self.number_values, self.window.offsets)
        self._execute(plan.execute, operands, made, min(plan.live))
        plan.record.calls += 1

    # -- the end ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        indices = range(self.node.results) if self.plan is None else self.plan.live
        buffers: list[Buffer] = []
        arrays: list[object] = []
        for index in indices:
            buffer, value = self.window.buffers[index], self.values[index]
            if buffer is None or value is None or not buffer.pending or index_of(buffer) != index:
                continue
            buffers.append(buffer)
            arrays.append(value.array)
        settle(buffers, arrays)

    def give_up(self) -> None:
        """After an error: settle what was computed. What was to be written keeps its last value; the rest has none."""
        before = written_from(self.node.path())
        lost = Unavailable(
            "the computation of this tensor failed: see the error that was raised then."
        )
        for index, buffer in enumerate(self.window.buffers):
            if buffer is None or not buffer.pending or index_of(buffer) != index:
                continue
            array = self._computed(index)
            while array is None and index in before:
                index = before[index]
                array = self._computed(index)
                if array is not None:
                    buffer.spec = spec_of(np.dtype(array.dtype), array.shape, array.sharding)
            settle([buffer], [lost if array is None else array])

    def _computed(self, index: int) -> jax.Array | None:
        """A value, if it was computed and not donated since."""
        if index < 0:
            array: jax.Array | None = self.window.inputs[~index]
        else:
            value = self.values[index]
            array = None if value is None else value.array
        return None if array is None or array.is_deleted() else array


def _shared(arrays: Sequence[object], indices: Iterable[int]) -> list[int]:
    """Those of arrays that are about to be donated that anything but this list holds, by index."""
    count = sys.getrefcount
    shared = []
    for index in indices:
        if count(arrays[index]) > _UNSHARED:
            shared.append(index)
    return shared


def _live(buffers: list[Buffer | None]) -> list[int]:
    """The indices of the buffers that somebody else holds."""
    count = sys.getrefcount
    live = []
    for index in range(len(buffers)):
        buffer = buffers[index]
        if buffer is not None and count(buffer) > _UNHELD:
            live.append(index)
    return live


# The references that these functions find for an object that nothing else holds. They differ among Pythons.
_UNSHARED = _UNHELD = 0
while _shared([object()], [0]):
    _UNSHARED += 1
while _live([receiver()]):
    _UNHELD += 1
