"""Recording: a call becomes a step in the tree of windows, and its results are pending buffers.

Recording takes about a third of the time of running: no array is read and nothing is launched. The calls of all
threads enter one window, because autograd runs a backward pass in a thread of its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import FrameType, ModuleType

import torch

from ..base import torch_private as private
from ..base.jax_private import checks_values
from ..dispatch.call import Call
from ..dispatch.numbers import check_bounds
from ..dispatch.operands import MOST_CONSTANT, Offsets
from ..dispatch.operation import Operation
from ..dispatch.program import Program
from ..dispatch.results import wrap_result
from ..dispatch.running import random_key
from ..dispatch.schema import Arguments
from ..native.loading import when_loaded
from ..programs import rng, tracing
from ..programs.site import origin, printing
from ..storage.buffer import Buffer, buffer_of
from ..storage.pending import CLASSES, index_of, suspend
from .node import Node, Step
from .policy import Policy
from .window import Stack, Window

Tensor = torch.Tensor
_create = private.create_empty_tensor
# The most calls and bytes of results in one window.
MOST_CALLS = 1000
# The fewest calls in a window that ends because its code is a loop. Shorter loops have several rounds in a window.
LEAST_LOOP = 32
MOST_BYTES = 8 << 30
# The most nodes in the tree of windows; beyond that a new tree is started.
MOST_NODES = 50_000


class Recorder:
    """Records the calls of all threads.

    Attributes:
        policy: decides what is recorded, and what is compiled.
        most_calls: the most calls in one window.
        nodes: how many nodes were made below the root.
        window: the calls that have not run yet.
        root: the node of an empty window.
    """

    __slots__ = ("__weakref__", "lock", "most_calls", "nodes", "policy", "root", "window")

    def __init__(self, policy: Policy):
        self.policy = policy
        self.root = Node()
        self.nodes = 0
        self.most_calls = MOST_CALLS
        self.lock = threading.RLock()
        self.window = Window(None)

    # -- recording -------------------------------------------------------------------------------------------------

    def hot(
        self, program: Program, args: Arguments, buffers: Sequence[Buffer], letter: str | None
    ) -> object:
        """As `dispatch.deferring.Recorder.hot`: a call that the hot path may run, recorded."""
        if not program.recordable or program.only is None:
            return NotImplemented
        with self.lock:
            window = self.window
            node = window.node
            if node is None or (program is window.leader and node.calls >= LEAST_LOOP):
                opened = self._window_for(program)
                if opened is None or (node := opened.node) is None:
                    return NotImplemented
                window = opened
            if len(window.inputs) > node.inputs:
                window.drop_inputs(node.inputs)
            step: list[object] = [program]
            for buffer in buffers:
                if buffer.pending:
                    step.append(index_of(buffer))
                    continue
                index = window.indices.get(id(buffer.array)) or window.add_input(buffer.array)
                if index is None:
                    return NotImplemented
                step.append(index)
            if not program.plain:
                if program.operands.views:
                    offsets = program.operands.offsets(args)
                    if not program.operands.applies(offsets):
                        return NotImplemented
                    window.offsets[node.views :] = (offsets,)
                    if not program.operands.varies:
                        step.append(offsets)
                if letter is not None:
                    if program.template.bounds:
                        check_bounds(program.template.bounds, [(letter, args[-1])])
                    window.numbers[node.numbers :] = ((letter, args[-1]),)
            leaf = program.only
            spec = leaf.spec
            made = spec.buffer(node.results, spec, origin(leaf))  # type: ignore[arg-type]  # an index, while pending
            made.__class__ = CLASSES[spec.buffer]
            result = _create(leaf.size, leaf.dtype)
            result.untyped_storage().buffer = made  # type: ignore[attr-defined]
            window.buffers[node.results :] = (made,)
            following = node.next.get(taken := tuple(step))
            if following is None:
                following = self._extended(node, taken)
            window.node = following
            if following.calls >= self.most_calls or following.nbytes > MOST_BYTES:
                self._flush_full(window)
            return result

    def call(self, operation: Operation, program: Program, call: Call) -> object:
        """As `dispatch.deferring.Recorder.call`."""
        if tracing.depth or not program.deferrable:
            return NotImplemented
        inputs = program.operands
        offsets: Offsets = ()
        if inputs.views:
            offsets = inputs.offsets(call.tensors)
            if not inputs.applies(offsets):
                return NotImplemented
        if call.numbers and program.template.bounds:
            check_bounds(program.template.bounds, call.numbers)
        if not program.lowering.random:
            with self.lock:
                return self._recorded(program, call, None, offsets)
        with self.lock:
            # A key may be drawn from a CPU generator, once: so what could refuse the call is asked first.
            window = self._window_for(program)
            if window is None or any(window.index(buffer) is None for buffer in call.buffers):
                return NotImplemented
        key = random_key(operation.kinds, call, program)
        # The key's lock first: a flush may begin under it, for a call that draws now.
        with key.lock, self.lock:
            if not key.pending:
                with key.locked():  # replaces a key that its program failed to compute
                    pass
            return self._recorded(program, call, key, offsets)

    def _recorded(
        self, program: Program, call: Call, key: rng.RandomKey | None, offsets: Offsets
    ) -> object:
        """Record a call that is known to be possible."""
        window = self.window
        node = window.node
        if node is None or (program is window.leader and node.calls >= LEAST_LOOP):
            opened = self._window_for(program)
            if opened is None:
                return NotImplemented
            window = opened
        node = window.node
        assert node is not None
        window.drop_inputs(node.inputs)
        operands = [call.buffers[i] for i in program.operands.unique]
        step: list[object] = [program]
        for buffer in operands if key is None else [key, *operands]:
            index = window.index(buffer)
            if index is None:
                return NotImplemented
            step.append(index)
        if offsets:
            window.offsets[node.views :] = (offsets,)
            if not program.operands.varies:
                step.append(offsets)
        if call.numbers:
            window.numbers[node.numbers :] = call.numbers
        results, written = self._results(program, call, node.results)
        if key is not None:
            written.append((key, node.results + len(results.made) + len(written)))
        window.buffers[node.results :] = [*results.made, *(buffer for buffer, _ in written)]
        following = node.next.get(tuple(step)) or self._extended(node, tuple(step))
        window.node = following
        if written:
            buffers, indices = zip(*written, strict=True)
            before = [index_of(buffer) for buffer in buffers if buffer.pending]
            suspend(buffers, indices)
            for index in before:  # now: Ctrl-C in between must not lose the value of before
                window.buffers[index] = None
        caller = origin(program.origin)
        for i, spec in zip(program.targets, program.new_specs, strict=True):
            call.buffers[i].spec, call.buffers[i].origin = spec, caller
        if following.calls >= self.most_calls or following.nbytes > MOST_BYTES:
            self._flush_full(window)
        return results.value

    def _extended(self, node: Node, step: Step) -> Node:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            self.clear_cache()
        return node.extend(step)

    def _results(
        self, program: Program, call: Call, first: int
    ) -> tuple[_Results, list[tuple[Buffer, int]]]:
        """The results of a call, and the buffers that it writes, each with its next index."""
        tensors: list[Tensor | None] = []
        made: list[Buffer] = []
        for leaf in program.results.leaves:
            if leaf is None:
                tensors.append(None)
                continue
            tensor = wrap_result(leaf, first + len(made), leaf)  # type: ignore[arg-type]  # an index, while pending
            buffer = buffer_of(tensor)
            buffer.__class__ = CLASSES[type(buffer)]
            tensors.append(tensor)
            made.append(buffer)
        written = [(call.buffers[i], first + len(made) + n) for n, i in enumerate(program.targets)]
        return _Results(program.results.structure(tensors, call.tensors), made), written

    # -- windows ---------------------------------------------------------------------------------------------------

    def _window_for(self, program: Program) -> Window | None:
        """The window for a call of this program, which may be the first of a window; None if it is to run now."""
        window = self.window
        if window.node is not None:
            if program is not window.leader or not self.policy.repeats(window, _stack()):
                return window
            self.flush()
        elif window.unfinished:
            self.flush()
        if checks_values() or printing():
            return None
        # A stack takes a few microseconds: it is looked at only once a window has been full.
        stack = _stack() if self.policy.cuts_loops else ()
        self.window = Window(self.root, program if stack else None, stack)
        return self.window

    def _opened(self, program: Program) -> Window | None:
        """A new window for the compiled kernels, which do not look at the stack; None if it is to be looked at."""
        return None if self.policy.cuts_loops else self._window_for(program)

    def flush(self) -> None:
        """Run the calls of the open window.

        Raises:
            RuntimeError: a program failed; the message names the operator and the line that called it.
        """
        with self.lock:
            window = self.window
            if window.node is None and not window.unfinished:
                return
            window.finish(self.policy)

    def _flush_full(self, window: Window) -> None:
        self.policy.note_full(window)
        self.flush()

    def clear_cache(self) -> None:
        """Drop what is known about windows, and with it their programs. The open window ends in the old tree."""
        self.root = Node()
        self.nodes = 0


class _Results:
    """What a call returns, and the buffers that it makes."""

    __slots__ = ("made", "value")

    def __init__(self, value: object, made: list[Buffer]):
        self.value, self.made = value, made


def _stack() -> Stack:
    """Where this thread is: the code and the instruction of each frame outside jaxtorch's own."""
    frame: FrameType | None = sys._getframe(3)
    stack = []
    while frame is not None:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(stack)


@when_loaded
def _connect(calls: ModuleType) -> None:
    calls.configure_recording(
        Recorder, Window, Node, CLASSES, LEAST_LOOP, MOST_CONSTANT, MOST_BYTES
    )
