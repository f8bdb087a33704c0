"""One traced signature: how its program is filled from a call, and where its outputs go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..device.rng import Source
from ..dispatch.atomic import store
from ..interop.bridge import Bridge, layouts
from ..storage.buffer import buffer_of
from . import hoisting
from .captured import Captured, Output, Session, capture
from .errors import CaptureError, written
from .guards import Guards
from .signature import Arguments

Tensor = torch.Tensor


class Entry:
    """A captured program, the places of its inputs, and what it may depend on.

    The inputs are the arguments' buffers at `places` among the leaves of a call, then the cells behind `references`.
    `inputs` are the tensors that gradients flow to: a place among the leaves, or a weak reference.
    """

    def __init__(
        self,
        captured: Captured,
        places: list[int],
        inputs: list[Any],
        bridge: Bridge,
        guards: Guards,
    ):
        self.captured = captured
        self.places = places
        self.references = captured.cells[len(places) :]
        self.specs = captured.specs[len(places) :]
        self.inputs = inputs
        self.bridge = bridge
        self.guards = guards
        self.sources = [s for r in self.references if isinstance(s := r(), Source)]
        self.single = captured.structure.is_leaf() and isinstance(captured.leaves[0], Output)

    def live_cells(self) -> list[Any] | None:
        """The cells to read, or None where the program no longer says what the code would do."""
        cells = [reference() for reference in self.references]
        try:
            if [cell.spec for cell in cells] != self.specs or not self.guards.hold():
                return None
        except AttributeError:  # a cell is gone
            return None
        return cells

    def run(self, leaves: Sequence[Any], cells: list[Any], borrowed: bool = False) -> Any:
        """The call, by the compiled program. `borrowed`: results go to the CPU."""
        if not self.sources:
            return self._run(leaves, cells, borrowed)
        with ExitStack() as stack:
            for source in self.sources:  # two threads must not draw from the same key
                stack.enter_context(source.lock)
            return self._run(leaves, cells, borrowed)

    def _run(self, leaves: Sequence[Any], cells: list[Any], borrowed: bool) -> Any:
        captured, bridge = self.captured, self.bridge
        operands = [leaves[place].untyped_storage().buffer.array for place in self.places]
        operands += [cell.array for cell in cells]
        if self.inputs:
            tensors = [leaves[t] if type(t) is int else t() for t in self.inputs]
            outputs, others = bridge.record(tensors, operands)
        else:
            outputs, others = bridge.run(operands)
        if captured.written:
            first = len(self.places)
            targets = [cells[i - first] for i in captured.written]
            store(targets, others[captured.others :])
            for cell, spec in zip(targets, captured.new_specs, strict=True):
                cell.spec = spec
        if self.single and not borrowed:
            return outputs[0] if outputs else bridge.wrap_other(others, 0)
        return self._result(outputs, others, borrowed)

    def _result(self, outputs: Sequence[Tensor], others: list[Any], borrowed: bool) -> Any:
        leaves = []
        for leaf in self.captured.leaves:
            if isinstance(leaf, Output):
                if leaf.differentiable:
                    tensor = outputs[leaf.position]
                else:
                    tensor = self.bridge.wrap_other(others, leaf.position)
                leaf = tensor.cpu() if borrowed else tensor
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
    # The arguments first, in their order.
    own = [place.get(id(cell())) for cell in captured.cells]
    order = sorted(range(len(own)), key=lambda i: (own[i] is None, own[i] or 0))
    captured = captured.reordered(order)
    places = sorted(p for p in own if p is not None)
    _check_effects(captured, len(places), guards)
    inputs, positions = _inputs(captured, session, leaves)
    compiled = hoisting.compiled(captured, positions, (), name)
    bridge = Bridge(compiled, _where(captured), layouts(session.differentiated))
    return Entry(captured, places, inputs, bridge, guards)


def _stand_in(leaf: Any, grad: bool) -> Any:
    """An argument as the traced code sees it: without its history, which ends at the program's border."""
    if isinstance(leaf, Tensor) and grad and leaf.requires_grad and not leaf.is_leaf:
        return leaf.detach().requires_grad_()
    return leaf


def _where(captured: Captured) -> Any:
    from ..storage import placement

    return captured.specs[0].placement if captured.specs else placement.current()


def _check_effects(captured: Captured, arguments: int, guards: Guards) -> None:
    allowed = guards.module_buffers()
    for i in captured.written:
        cell = captured.cells[i]()
        if i < arguments or (not isinstance(cell, Source) and id(cell) not in allowed):
            raise written("an argument" if i < arguments else "a tensor")
    if captured.escaped:
        raise CaptureError(
            "a tensor made inside the captured code was kept outside it (an attribute, a list or a global)",
            "It has no value after the trace: return it instead.",
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
                "gradients flow to a tensor that the captured code does not read itself",
                "Pass the tensor that it is computed from, or the one that is read, as an argument.",
            )
        dense = buffer.spec.numel == tensor.numel() and not tensor.storage_offset()
        if position in positions or not dense:
            raise CaptureError(
                "two tensors that require a gradient share memory, or one is a part of a larger one",
                "Pass x.clone() for one of them.",
            )
        inputs.append(argument.get(id(tensor), weakref.ref(tensor)))
        positions.append(position)
    return inputs, positions
