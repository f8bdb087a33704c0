"""How the calls of a window run: as one compiled program (`plan.py`), or call by call.

Call by call, each runs by the program that it would have run at once. Either way the buffers of the window are settled
in the end: each has its array.

A flush can be interrupted by Ctrl-C at any bytecode. Each program stores its outputs in one step, and the run notes
what has run, so the next flush continues there.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, starmap
from typing import TYPE_CHECKING, TypeGuard

import jax
import numpy as np

from ..base.jax_private import FAILURES
from ..dispatch.executable import Run as Execute
from ..dispatch.numbers import Scalar, number_operands
from ..dispatch.operands import Operand
from ..dispatch.program import compile_all
from ..native.loading import compiled
from ..programs import rng
from ..programs.atomic import receiver, run_into
from ..programs.errors import explain_buffer
from ..programs.writes import Unavailable
from ..storage.buffer import Buffer, spec_of
from ..storage.pending import index_of, settle
from ..storage.placement import copied
from .node import Node, Recorded
from .plan import Plan, written_from

if TYPE_CHECKING:
    from .policy import Policy
    from .window import Window


class Run(ABC):
    """A flush of a window."""

    def __init__(self, window: Window, node: Node):
        self.window, self.node = window, node

    @abstractmethod
    def finish(self) -> None:
        """Run what has not run yet, and settle the buffers."""

    def _result(self, index: int) -> jax.Array | None:
        """A result that was computed, and that its buffer does not have yet."""
        return None

    def _explained(self, error: Exception, first: int) -> Exception:
        """An error of a program whose first result is `first`, with the name of an operator and its line."""
        made = next((b for b in self.window.buffers[first:] if b is not None), receiver())
        return explain_buffer(error, made)

    def give_up(self) -> None:
        """After an error: settle what was computed. What was to be written keeps its last value; the rest has none."""
        before = written_from(self.node.path())
        lost = Unavailable(
            "the computation of this tensor failed: see the error that was raised then."
        )
        for index, buffer in enumerate(self.window.buffers):
            if not _awaits(buffer, index):
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
            array = self._result(index)
        return None if array is None or array.is_deleted() else array


class CallByCall(Run):
    """Each call by its own program.

    Args:
        live: the indices of the results that somebody still holds.

    Attributes:
        values: for each result a buffer that receives it; None for a result that was dropped.
        done: how many calls have run.
    """

    def __init__(self, window: Window, node: Node, live: Iterable[int]):
        super().__init__(window, node)
        self.live = live
        self.values: list[Buffer | None] = [None] * node.results
        self.done = 0

    def finish(self) -> None:
        path = self.node.path()
        with suppress(Exception):  # raised again where the call runs, after those before it
            compile_all(call.program for call in path if call.program.needs_compilation())
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
        self._settle()

    def _settle(self) -> None:
        buffers: list[Buffer] = []
        arrays: list[jax.Array] = []
        for index, (buffer, value) in enumerate(zip(self.window.buffers, self.values, strict=True)):
            if value is not None and _awaits(buffer, index):
                buffers.append(buffer)
                arrays.append(value.array)
        settle(buffers, arrays)

    def _result(self, index: int) -> jax.Array | None:
        value = self.values[index]
        return None if value is None else value.array

    def _run_call(self, call: Recorded, position: int, last: dict[int, int]) -> None:
        program, inputs = call.program, call.program.operands
        indices = list(call.operands)
        key = self._array(indices.pop(0)) if program.lowering.random else None
        donated = set(inputs.donated())
        operands: list[Operand] = []
        for n, index in enumerate(indices, len(inputs.leading)):
            kept = last[index] > position or (index < 0 and shared(self.window.inputs, [~index]))
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
            self._launch(call, operands, receivers)
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
        self._launch(call, operands, receivers)

    def _launch(self, call: Recorded, operands: list[Operand], receivers: list[Buffer]) -> None:
        try:
            run_into(call.program.ready(), operands, receivers)
        except FAILURES as error:
            raise self._explained(error, call.first) from None

    def _array(self, index: int) -> jax.Array:
        if index < 0:
            return self.window.inputs[~index]
        value = self.values[index]
        assert value is not None
        return value.array


class AsProgram(Run):
    """All calls as one program.

    Attributes:
        plan: the program.
        numbers: those that it takes.
        may_have_run: whether it was called, and perhaps interrupted.
    """

    def __init__(self, window: Window, node: Node, plan: Plan, numbers: Sequence[Scalar]):
        super().__init__(window, node)
        self.plan, self.numbers = plan, numbers
        self.may_have_run = False

    def finish(self) -> None:
        plan, inputs, buffers = self.plan, self.window.inputs, self.window.buffers
        if self.may_have_run and not any(_awaits(buffers[i], i) for i in plan.live):
            return
        kept = shared(inputs, plan.donated)  # before `operands` refers to them too
        operands: list[Operand] = [*inputs[: plan.input_count]]
        for n in kept:
            operands[n] = copied(inputs[n])
        operands += plan.other_operands(self.numbers, self.window.offsets)
        self.may_have_run = True
        try:
            run_and_settle(plan.execute, operands, buffers, plan.live)
        except FAILURES as error:
            raise self._explained(error, min(plan.live)) from None
        plan.record.calls += 1


def _awaits(buffer: Buffer | None, index: int) -> TypeGuard[Buffer]:
    """Whether a buffer waits for the result with this index: it may have been overwritten since."""
    return buffer is not None and buffer.pending and index_of(buffer) == index


def start(window: Window, node: Node, policy: Policy) -> Run:
    """A flush of the calls up to a node."""
    del window.buffers[node.results :]  # of a call that was interrupted
    live = held(window.buffers)
    found = policy.plan_for(node, live, window.numbers[: node.numbers], window.site)
    return CallByCall(window, node, live) if found is None else AsProgram(window, node, *found)


# -- what the compiled module does ---------------------------------------------------------------------------------


def run_and_settle(
    execute: Execute, operands: list[Operand], buffers: list[Buffer | None], indices: list[int]
) -> None:
    """Run a program, and give the results with these indices to those of the buffers that wait for them.

    That is one step: Ctrl-C comes before or after it.
    """
    found = [(index, buffers[index]) for index in indices]
    waiting = [b if _awaits(b, index) else receiver() for index, b in found]
    settle(waiting, chain.from_iterable(starmap(execute, (operands,))))


def shared(arrays: list[jax.Array], indices: Iterable[int]) -> list[int]:
    """Those of arrays that are about to be donated that anything but this list holds, by index."""
    count = sys.getrefcount
    found = []
    for index in indices:
        if count(arrays[index]) > _UNSHARED:
            found.append(index)
    return found


def held(buffers: list[Buffer | None]) -> list[int]:
    """The indices of the buffers that somebody else holds."""
    count = sys.getrefcount
    found = []
    for index in range(len(buffers)):
        buffer = buffers[index]
        if buffer is not None and count(buffer) > _UNHELD:
            found.append(index)
    return found


# The references that these functions find for an object that nothing else holds. They differ among Pythons.
_UNSHARED = _UNHELD = 0
while shared([object()], [0]):  # type: ignore[list-item]  # any object will do
    _UNSHARED += 1
while held([receiver()]):
    _UNHELD += 1


held, shared, run_and_settle = compiled(held), compiled(shared), compiled(run_and_settle)
