"""The replay of a `pure` function: its outputs have gradients, by one node in torch's graph.

`trace_entry` traces a call and checks that the code only does what `pure` allows: it may write registered buffers of
modules (running statistics) and random keys, and nothing else that existed before. `Entry` then runs the program
through a `Bridge` (`operators/bridge.py`), which records the node if a tensor needs a gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from ..base.torch_private import pytree
from ..operators.bridge import Bridge, layouts
from ..programs.atomic import ensure_unshared, mark_donated, store, was_replaced
from ..programs.rng import RandomKey
from ..programs.writes import DONATED_ERRORS
from ..storage.buffer import Buffer, Spec, buffer_of
from ..storage.layout import covers_buffer
from . import hoisting
from .captured import Captured, Outcome, capture, placement_of, respecify
from .cpu_generators import untouched
from .dependencies.guard import Check
from .dependencies.record import Record, recording
from .dependencies.recorder import Recorder
from .errors import CaptureError, write_refused
from .failed_traces import undone
from .inputs import arguments_first
from .quick import CallOf, run_of
from .reach import reachable
from .replay import Replay
from .signature import Arguments, Leaves

Tensor = torch.Tensor
_array_of = attrgetter("array")


# A tensor that gradients flow to: its index among the leaves of a call, or a weak reference.
Input = int | weakref.ref[Tensor]


class Entry(Replay):
    """A replay whose outputs have gradients, by one node in torch's graph.

    Args:
        captured, indices, record: as for `Replay`.
        inputs: the tensors that gradients flow to.
        bridge: runs the program.
    """

    def __init__(
        self,
        captured: Captured,
        indices: list[int],
        record: Record,
        inputs: list[Input],
        bridge: Bridge,
    ):
        super().__init__(captured, indices, record, bridge.compiled.donated)
        self.landings = record.landings(captured.escaped)
        self.inputs = inputs
        self.bridge = bridge
        # The most common program: it returns one tensor, writes nothing and needs no gradient.
        self._only_returns = (
            self.only is not None
            and not (inputs or captured.written or self.landings or bridge.compiled.donated)
            and not self.only.differentiable
        )
        effects = self.again or self.sources or self.reflagged or self.rebound
        trivial = self._only_returns and self.reads_nothing and self.sharing.is_trivial
        self._needs_only_arguments = trivial and not effects

    def quick_call(self, specs: list[Spec]) -> CallOf:
        forward, leaf = self.bridge.compiled.forward, self.bridge.other_leaves.get(0)
        if not self._needs_only_arguments or forward is None or leaf is None:
            return super().quick_call(specs)
        specs = [specs[index] for index in self.indices]
        return run_of(specs, forward, self.bridge.compiled.records[""], leaf, self.bridge)

    def compile(self) -> None:
        compiled = self.bridge.compiled
        if self.inputs:
            compiled.compile_saving()
        else:
            compiled.compile()

    def _run(self, leaves: Leaves, named: list[Buffer], call: Arguments | None) -> Any:
        captured, bridge = self.captured, self.bridge
        if self._only_returns and (call is None or not call.borrowed):
            operands = [leaves[index].untyped_storage().buffer.array for index in self.indices]
            operands += map(_array_of, named)
            try:
                return bridge.wrap_other(bridge.run(operands)[1], 0)
            except (
                DONATED_ERRORS
            ):  # another thread has just written to an input: the code below waits for it
                pass
        buffers = [leaves[index].untyped_storage().buffer for index in self.indices]
        tensors: list[Any] = [leaves[t] if isinstance(t, int) else t() for t in self.inputs]
        while True:
            for i in bridge.compiled.donated:
                ensure_unshared(buffers[i])
            operands = list(map(_array_of, (*buffers, *named)))
            try:
                ran = bridge.record(tensors, operands) if tensors else bridge.run(operands)
                break
            except DONATED_ERRORS:
                if not was_replaced((*buffers, *named), operands):
                    raise
        outputs, others = ran
        for i in bridge.compiled.donated:
            mark_donated(buffers[i])
        if captured.written:
            first = len(self.indices)
            targets = [named[i - first] for i in captured.written]
            store(targets, others[captured.others :])
            for buffer, spec in zip(targets, captured.new_specs, strict=True):
                buffer.spec = spec
            if bridge.compiled.on_mesh:
                respecify(targets)
        for landing in self.landings:
            array = others[captured.others + len(captured.written) + landing.output]
            landing(array, bridge.compiled.on_mesh)
        if self.only is not None and (call is None or not call.borrowed):
            return outputs[0] if outputs else bridge.wrap_other(others, 0)
        return self._result(
            lambda leaf: (
                outputs[leaf.position]
                if leaf.differentiable
                else bridge.wrap_other(others, leaf.position)
            ),
            leaves,
            call,
        )


def trace_entry(
    function: Callable[..., object], arguments: Arguments, name: str, donated: set[int]
) -> Entry:
    """Trace a call for its signature. `donated`: leaves whose memory a run without gradients may reuse."""
    grad = torch.is_grad_enabled()
    leaves = arguments.traced_leaves(lambda leaf: _without_history(leaf, grad))
    args, kwargs = pytree.tree_unflatten(leaves, arguments.structure)
    recorder = Recorder(function)
    reached = [*arguments.leaves, *reachable(function)]
    with recording(recorder), undone(), untouched(reached, recorder):
        captured, outcome = capture(
            lambda: recorder.run(args, kwargs),
            grad,
            recorder.gradients,
            known=lambda: [*arguments.known(leaves), *recorder.notes.known()],
            held=recorder.effects.stored_tensors,
            fresh=lambda: recorder.fresh,
        )
        _check_gradients(recorder)
        uses_gradients = recorder.uses_gradients()
        if uses_gradients:
            _guard_gradients(recorder)
        record = Record(recorder, outcome.trace.created_here, captured.leaves, captured.escaped)
        if uses_gradients:
            record.tie(arguments.caller_leaves, recorder)
        return _entry(arguments, leaves, captured, outcome, record, name, donated)


def _entry(
    arguments: Arguments,
    leaves: list[object],
    captured: Captured,
    outcome: Outcome,
    record: Record,
    name: str,
    donated: set[int],
) -> Entry:
    captured, indices, _ = arguments_first(captured, arguments, record)
    _check_effects(captured, len(indices), record)
    inputs, positions = _inputs(captured, outcome, leaves)
    reused = captured.reusable([i for i, index in enumerate(indices) if index in donated])
    compiled = hoisting.compiled(captured, positions, reused, name)
    compiled.cause.roles = captured.roles_by_name()
    bridge = Bridge(compiled, placement_of(captured), layouts(outcome.differentiated), outcome.flow)
    entry = Entry(captured, indices, record, inputs, bridge)
    record.forget()
    return entry


def _without_history(tensor: Tensor, grad: bool) -> Tensor:
    """The argument that the traced code gets: a leaf, because the program's node ends at its inputs."""
    if grad and tensor.requires_grad and not tensor.is_leaf:
        return tensor.detach().requires_grad_()
    return tensor


def _check_gradients(recorder: Recorder) -> None:
    for reference, gradient in list(recorder.gradients.values()):
        leaf = reference()
        if leaf is not None and recorder.sets_gradient(leaf, gradient):
            raise CaptureError(
                "pure code fills .grad, by calling backward() or by assigning it",
                "Call backward() on what it returns, or use jit (%%jit), which does both in one program.",
            )


def _guard_gradients(recorder: Recorder) -> None:
    """Add guards: each leaf that is read by name has a `.grad` if it had one in the trace, and else none."""
    for key, (path, reference) in recorder.tensors.items():
        if key in recorder.gradients:
            _, gradient = recorder.gradients[key]
            recorder.checks[id(reference)] = _has_gradient(path, reference, gradient is not None)


def _has_gradient(path: str, leaf: weakref.ref[Tensor], had: bool) -> Check:
    def holds() -> bool:
        tensor = leaf()
        return tensor is not None and (tensor.grad is not None) is had

    return Check(f"{path}.grad", "is no longer set" if had else "is now set", holds)


def _check_effects(captured: Captured, arguments: int, record: Record) -> None:
    allowed = record.module_buffers()
    for i in captured.written:
        buffer = captured.buffers[i]()
        if i < arguments or (not isinstance(buffer, RandomKey) and id(buffer) not in allowed):
            raise write_refused("an argument" if i < arguments else "a tensor")
    # A running statistic may be assigned a new tensor instead of being written: `self.mean = 0.9 * self.mean + ...`.
    for binding in record.bindings:
        if binding.before is None or not all(slot.is_buffer for slot in binding.targets):
            raise binding.refusal
    if len(captured.escaped) > len(record.bindings):
        landed = {landing.output for landing in record.landings(captured.escaped)}
        raise CaptureError(
            "the captured code computes a tensor and stores it outside, in an object, a list or a global",
            "It has no value after tracing: return it instead.",
            *captured.line_of_escaped(landed),
        )


def _inputs(
    captured: Captured, outcome: Outcome, leaves: list[object]
) -> tuple[list[Input], list[int]]:
    """The tensors that gradients flow to, and the index of each among the inputs of the program."""
    position_of = {id(reference()): i for i, reference in enumerate(captured.buffers)}
    # By the tensor, not by its buffer, which another argument may share.
    argument = {id(leaf): i for i, leaf in enumerate(leaves)}
    inputs: list[Input] = []
    positions: list[int] = []
    for tensor in outcome.differentiated:
        buffer = buffer_of(tensor)
        position = position_of.get(id(buffer))
        if position is None:
            raise CaptureError(
                "gradients flow to a tensor that the captured code does not read directly",
                "Pass as an argument either the tensor that it is computed from or the tensor that the code reads.",
            )
        lazy = tensor.is_conj() or tensor.is_neg()
        if position in positions or lazy or not covers_buffer(tensor):
            raise CaptureError(
                "two tensors that require gradients share memory, or one is a view of a larger tensor",
                "Pass x.clone() for one of them.",
            )
        inputs.append(argument.get(id(tensor), weakref.ref(tensor)))
        positions.append(position)
    return inputs, positions
