"""One traced signature: how a call supplies the inputs of its program, and where the outputs go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from ..base.torch_private import pytree
from ..operators.bridge import Bridge, layouts
from ..programs.atomic import TAKEN, mark_donated, own, replaced, store
from ..programs.rng import Source
from ..storage.buffer import Spec, buffer_of
from . import hoisting
from .captured import Captured, Session, capture, placement_of
from .cpu_generators import untouched
from .dependencies.guard import Check
from .dependencies.record import Record, recording
from .dependencies.recorder import Recorder
from .errors import CaptureError, written
from .quick import run_of
from .reach import reachable
from .replay import Replay
from .signature import Arguments

Tensor = torch.Tensor
_array_of = attrgetter("array")


class Entry(Replay):
    """A replay whose outputs have gradients, by one node in torch's graph.

    Args:
        captured, places, record: as `Replay`'s.
        inputs: the tensors that gradients flow to: a place among the leaves, or a weak reference.
        bridge: runs the program.
    """

    def __init__(
        self,
        captured: Captured,
        places: list[int],
        record: Record,
        inputs: list[Any],
        bridge: Bridge,
    ):
        super().__init__(captured, places, record, bridge.compiled.donated)
        self.landings = record.landings(captured.escaped)
        self.inputs = inputs
        self.bridge = bridge
        # One array in the place of one tensor, and nothing to write: the commonest program.
        self._only_returns = (
            self.single
            and not (inputs or captured.written or self.landings or bridge.compiled.donated)
            and not captured.leaves[0].differentiable
        )
        effects = self.again or self.sources or self.reflagged or self.rebound
        trivial = self._only_returns and self.reads_nothing and self.sharing.is_trivial
        self._needs_only_arguments = trivial and not effects

    def quick_call(self, specs: list[Spec]) -> Callable[[tuple[Any, ...]], Any]:
        forward, leaf = self.bridge.compiled.forward, self.bridge.other_leaves.get(0)
        if not self._needs_only_arguments or forward is None or leaf is None:
            return super().quick_call(specs)
        specs = [specs[place] for place in self.places]
        return run_of(specs, forward, self.bridge.compiled.records[""], leaf, self.bridge)

    def compile(self) -> None:
        compiled = self.bridge.compiled
        if self.inputs:
            compiled.compile_saving()
        else:
            compiled.compile()

    def _run(self, leaves: Sequence[Any], cells: list[Any], call: Arguments | None) -> Any:
        captured, bridge = self.captured, self.bridge
        if self._only_returns and (call is None or not call.borrowed):
            operands = [leaves[place].untyped_storage().buffer.array for place in self.places]
            operands += map(_array_of, cells)
            # Where another thread has just written to an input, the way below waits for it.
            try:
                return bridge.wrap_other(bridge.run(operands)[1], 0)
            except TAKEN:
                pass
        buffers = [leaves[place].untyped_storage().buffer for place in self.places]
        tensors = [leaves[t] if type(t) is int else t() for t in self.inputs]
        while True:
            for i in bridge.compiled.donated:
                own(buffers[i])
            operands = list(map(_array_of, (*buffers, *cells)))
            try:
                ran = bridge.record(tensors, operands) if tensors else bridge.run(operands)
                break
            except TAKEN:
                if not replaced((*buffers, *cells), operands):
                    raise
        outputs, others = ran
        for i in bridge.compiled.donated:
            mark_donated(buffers[i])
        if captured.written:
            first = len(self.places)
            targets = [cells[i - first] for i in captured.written]
            store(targets, others[captured.others :])
            for cell, spec in zip(targets, captured.new_specs, strict=True):
                cell.spec = spec
        for landing in self.landings:
            landing(others[captured.others + len(captured.written) + landing.output])
        if self.single and (call is None or not call.borrowed):
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
    function: Callable[..., Any], arguments: Arguments, name: str, donated: set[int]
) -> Entry:
    """Trace a call for its signature. `donated`: leaves whose memory a run without gradients takes."""
    grad = torch.is_grad_enabled()
    leaves = arguments.given(lambda leaf: _stand_in(leaf, grad))
    args, kwargs = pytree.tree_unflatten(leaves, arguments.structure)
    recorder = Recorder(function)
    with recording(recorder), untouched([*arguments.leaves, *reachable(function)], recorder):
        captured, session = capture(
            lambda: recorder.run(args, kwargs),
            grad,
            recorder.gradients,
            known=lambda: [*arguments.known(leaves), *recorder.notes.known()],
        )
        _check_gradients(recorder)
        asks = recorder.uses_gradients()
        if asks:
            _guard_gradients(recorder)
        record = Record(recorder, session.trace.bore, captured.leaves, captured.escaped)
        if asks:
            record.tie(arguments.own, recorder)
        return _entry(arguments, leaves, captured, session, record, name, donated)


def _entry(
    arguments: Arguments,
    leaves: list[Any],
    captured: Captured,
    session: Session,
    record: Record,
    name: str,
    donated: set[int],
) -> Entry:
    place = {
        id(buffer_of(leaf)): i
        for i, leaf in enumerate(arguments.leaves)
        if isinstance(leaf, Tensor) and leaf.device.type == "jax"
    }
    # The arguments first, in their order; then what is read by name.
    cells = [cell() for cell in captured.cells]
    own = [place.get(id(cell)) for cell in cells]
    order = sorted(
        range(len(own)), key=lambda i: (own[i] is None, own[i] or 0, not record.is_named(cells[i]))
    )
    captured = captured.reordered(order)
    places = sorted(p for p in own if p is not None)
    _check_effects(captured, len(places), record)
    inputs, positions = _inputs(captured, session, leaves)
    given = captured.reusable([i for i, place in enumerate(places) if place in donated])
    compiled = hoisting.compiled(captured, positions, given, name)
    bridge = Bridge(compiled, placement_of(captured), layouts(session.differentiated), session.flow)
    entry = Entry(captured, places, record, inputs, bridge)
    record.forget()
    return entry


def _stand_in(leaf: Any, grad: bool) -> Any:
    """An argument as the traced code sees it: without its history, which ends at the program's border."""
    if isinstance(leaf, Tensor) and grad and leaf.requires_grad and not leaf.is_leaf:
        return leaf.detach().requires_grad_()
    return leaf


def _check_gradients(recorder: Recorder) -> None:
    for reference, gradient in list(recorder.gradients.values()):
        leaf = reference()
        if leaf is not None and recorder.set_gradient(leaf, gradient):
            raise CaptureError(
                "pure code fills .grad, by calling backward() or by assigning it",
                "Call backward() on what it returns, or use jit (%%jit), which does both in one program.",
            )


def _guard_gradients(recorder: Recorder) -> None:
    """Whether a leaf that is read by name has a `.grad` is part of the program."""
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
        cell = captured.cells[i]()
        if i < arguments or (not isinstance(cell, Source) and id(cell) not in allowed):
            raise written("an argument" if i < arguments else "a tensor")
    # A running statistic may be bound anew instead of written: `self.mean = 0.9 * self.mean + ...`.
    for binding in record.bindings:
        if binding.before is None or not all(slot.is_buffer for slot in binding.slots):
            raise binding.refusal
    if len(captured.escaped) > len(record.bindings):
        raise CaptureError(
            "the captured code stores a tensor outside itself (in an attribute, a list or a global)",
            "The tensor has no value after tracing: return it instead.",
        )


def _inputs(captured: Captured, session: Session, leaves: list[Any]) -> tuple[list[Any], list[int]]:
    """The tensors that gradients flow to (a place among the arguments, or a weak reference), and their inputs."""
    where = {id(cell()): i for i, cell in enumerate(captured.cells)}
    # By the tensor, not by its buffer, which another argument may share.
    argument = {id(leaf): i for i, leaf in enumerate(leaves)}
    inputs: list[Any] = []
    positions: list[int] = []
    for tensor in session.differentiated:
        buffer = buffer_of(tensor)
        position = where.get(id(buffer))
        if position is None:
            raise CaptureError(
                "gradients flow to a tensor that the captured code does not read directly",
                "Pass as an argument either the tensor that it is computed from or the tensor that the code reads.",
            )
        dense = buffer.spec.numel == tensor.numel() and not tensor.storage_offset()
        dense = dense and not tensor.is_conj() and not tensor.is_neg()
        if position in positions or not dense:
            raise CaptureError(
                "two tensors that require gradients share memory, or one is a view of a larger tensor",
                "Pass x.clone() for one of them.",
            )
        inputs.append(argument.get(id(tensor), weakref.ref(tensor)))
        positions.append(position)
    return inputs, positions
