"""One traced signature: how its program is filled from a call, and where its outputs go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..device.rng import Source
from ..dispatch.atomic import store
from ..interop.bridge import Bridge
from ..interop.compiled import Compiled
from ..storage.buffer import buffer_of
from .captured import Captured, Output, Session, capture
from .errors import CaptureError, written
from .guards import Guards
from .signature import Arguments

Tensor = torch.Tensor


class Entry:
    """A captured program and the places of its inputs.

    `slots` has one entry for each input: the place of an argument among the leaves, or the weak reference of a cell
    that is read where it is. `inputs` are the tensors that gradients flow to, likewise.
    """

    def __init__(
        self,
        captured: Captured,
        slots: list[Any],
        inputs: list[Any],
        bridge: Bridge,
        guards: Guards,
    ):
        self.captured = captured
        self.arguments = [(i, s) for i, s in enumerate(slots) if type(s) is int]
        self.cells = [(i, s) for i, s in enumerate(slots) if type(s) is not int]
        self.specs = [captured.specs[i] for i, _ in self.cells]
        self.inputs = inputs
        self.bridge = bridge
        self.guards = guards
        self.runs = 0

    def holds(self) -> bool:
        """Whether the program still says what the code would do."""
        try:
            specs = [cell().spec for _, cell in self.cells]
        except AttributeError:  # a cell is gone
            return False
        return specs == self.specs and self.guards.hold()

    def run(self, arguments: Arguments) -> Any:
        """The call, by the compiled program."""
        captured = self.captured
        leaves = arguments.leaves
        arrays: list[Any] = [None] * len(captured.cells)
        cells: list[Any] = [cell() for _, cell in self.cells]
        with ExitStack() as stack:
            for cell in cells:
                if type(cell) is Source:  # two threads must not draw from the same key
                    stack.enter_context(cell.lock)
            for i, place in self.arguments:
                arrays[i] = buffer_of(leaves[place]).array
            for (i, _), cell in zip(self.cells, cells, strict=True):
                arrays[i] = cell.array
            tensors = [leaves[t] if type(t) is int else t() for t in self.inputs]
            outputs, others = self.bridge(tensors, arrays)
            if captured.written:
                self._write(arguments, others[captured.others :])
        self.runs += 1
        return self._result(arguments, outputs, others)

    def _write(self, arguments: Arguments, arrays: list[Any]) -> None:
        by_place = {i: cell() for i, cell in self.cells}
        by_place |= {i: buffer_of(arguments.leaves[p]) for i, p in self.arguments}
        targets = [by_place[i] for i in self.captured.written]
        store(targets, arrays)
        for cell, spec in zip(targets, self.captured.new_specs, strict=True):
            cell.spec = spec

    def _result(self, arguments: Arguments, outputs: list[Tensor], others: list[Any]) -> Any:
        leaves = []
        for leaf in self.captured.leaves:
            if isinstance(leaf, Output):
                if leaf.differentiable:
                    tensor = outputs[leaf.position]
                else:
                    tensor = self.bridge.wrap(others[leaf.position])
                leaf = tensor.cpu() if arguments.borrowed else tensor
            leaves.append(leaf)
        return pytree.tree_unflatten(leaves, self.captured.structure)


def trace_entry(function: Callable[..., Any], arguments: Arguments, name: str) -> Entry:
    """Trace a call for its signature."""
    grad = torch.is_grad_enabled()
    leaves = [_stand_in(leaf, grad) for leaf in arguments.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, arguments.structure)
    guards = Guards(function)
    with guards.watching():
        captured, session = capture(lambda: function(*args, **kwargs), grad)
    place = {
        id(buffer_of(leaf)): i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.device.type == "jax"
    }
    slots = [place.get(id(cell()), cell) for cell in captured.cells]
    _check_effects(captured, slots, guards)
    inputs, positions = _inputs(captured, session, slots, leaves)
    compiled = Compiled(captured.function, captured.avals, positions, name=name)
    bridge = Bridge(compiled, _where(captured))
    # The arguments' own tensors stand in later calls where the stand-ins stood in this one.
    return Entry(captured, slots, inputs, bridge, guards)


def _stand_in(leaf: Any, grad: bool) -> Any:
    """An argument as the traced code sees it: without its history, which ends at the program's border."""
    if isinstance(leaf, Tensor) and grad and leaf.requires_grad and not leaf.is_leaf:
        return leaf.detach().requires_grad_()
    return leaf


def _where(captured: Captured) -> Any:
    from ..storage import placement

    return captured.specs[0].placement if captured.specs else placement.current()


def _check_effects(captured: Captured, slots: list[Any], guards: Guards) -> None:
    allowed = guards.module_buffers()
    for i in captured.written:
        cell = captured.cells[i]()
        if not isinstance(cell, Source) and id(cell) not in allowed:
            raise written("an argument" if type(slots[i]) is int else "a tensor")
    if captured.escaped:
        raise CaptureError(
            "a tensor made inside the captured code was kept outside it (an attribute, a list or a global)",
            "It has no value after the trace: return it instead.",
        )


def _inputs(
    captured: Captured, session: Session, slots: list[Any], leaves: list[Any]
) -> tuple[list[Any], list[int]]:
    """The tensors that gradients flow to (a place among the arguments, or a weak reference), and their inputs."""
    where = {id(cell()): i for i, cell in enumerate(captured.cells)}
    inputs: list[Any] = []
    positions: list[int] = []
    for tensor in session.differentiated:
        buffer = buffer_of(tensor)
        position = where.get(id(buffer))
        if position is None:
            raise CaptureError(
                "gradients flow to a tensor that the captured code does not read itself",
                "Pass the tensor that it is computed from, or the one that is read, as an argument.",
            )
        dense = buffer.spec.numel == tensor.numel() and not tensor.storage_offset()
        if position in positions or not dense:
            raise CaptureError(
                "two tensors that require a gradient share memory, or one is a part of a larger one",
                "Pass x.clone() for one of them.",
            )
        slot = slots[position]
        inputs.append(slot if type(slot) is int else weakref.ref(tensor))
        positions.append(position)
    return inputs, positions
