"""Lowering without memory: meta tensors become tensors of the device over hollow arrays while a program is traced.

The tensors keep their identity: torch swaps the contents of the two Python objects, as `Module.to` can. So modules,
optimizers and closures need no rewriting, wherever they hold a tensor. Afterwards all are meta tensors again, and state
that optimizers created is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ..base.jax_meshes import in_context
from ..base.torch_private import pytree, swap_implementations
from ..storage.buffer import Buffer, buffer_of
from ..storage.hollow import hollow_tensor
from .cached import Cached
from .captured import Captured
from .layouts import Layout, MeshLike, Shardings, check_target, devices_of, mesh_of
from .reach import Reach
from .replay import Replay

Tensor = torch.Tensor
R = TypeVar("R", bound=Replay)
Call = tuple[tuple[object, ...], dict[str, object]]  # arguments by position and by name


class Reached:
    """The tensors on the meta device and the optimizers that a call reaches."""

    def __init__(self, function: Callable[..., object], call: Call):
        reach = Reach({})
        reach.visit("", function)
        for leaf in pytree.tree_leaves(call):
            reach.visit("", leaf)
        self.optimizers = list(reach.optimizers.values())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                reach.visit("", group["params"])
            reach.visit("", list(optimizer.state.values()))
        meta = [t for t in reach.tensors if t.device.type == "meta"]
        self.meta = list({id(t): t for t in meta}.values())

    @contextmanager
    def _hollow(self) -> Iterator[None]:
        """Make the meta tensors tensors of the device, without memory, within a block."""
        twins = [(tensor, _twin(tensor)) for tensor in self.meta]
        swapped = []
        # Dictionaries that change: the state of all parameters, and that of each.
        states: list[dict[Any, Any]] = [optimizer.state for optimizer in self.optimizers]
        states += [s for state in states for s in state.values() if isinstance(s, dict)]
        before = [(state, dict(state)) for state in states]
        try:
            for tensor, twin in twins:
                swap_implementations(tensor, twin)
                swapped.append((tensor, twin))
            yield
        finally:
            for state, values in before:
                state.clear()
                state.update(values)
            for tensor, twin in swapped:
                swap_implementations(tensor, twin)

    def captured(self, fresh: Cached[R], call: Call) -> tuple[R, dict[int, int]]:
        """The program of a call, without running it; for each input that is optimizer state, its parameter's input.

        Args:
            fresh: traces the call; its programs are not reused, because later calls have other tensors.
        """
        with self._hollow(), fresh.exclusive():
            replay, _, _, _ = fresh.find(*call)
            try:
                return replay, self._parameters_of_state(replay.captured)
            finally:
                replay.undo_trace()

    def _parameters_of_state(self, captured: Captured) -> dict[int, int]:
        """For each input of a program that is the state of a parameter and has its shape: that parameter's input."""
        inputs = {id(b): i for i, ref in enumerate(captured.buffers) if (b := ref()) is not None}
        return {
            inputs[id(state)]: inputs[id(parameter)]
            for optimizer in self.optimizers
            for parameter, state in _state(optimizer)
            if id(state) in inputs
            and id(parameter) in inputs
            and state.spec.shape == parameter.spec.shape
        }


def _twin(tensor: Tensor) -> Tensor:
    twin = hollow_tensor(tensor.shape, tensor.dtype).requires_grad_(tensor.requires_grad)
    if tensor.is_leaf and tensor.grad is not None:
        twin.grad = hollow_tensor(tensor.grad.shape, tensor.grad.dtype)
    return twin


def _state(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Buffer, Buffer]]:
    """Each parameter with each tensor of its state, and with its gradient."""
    for parameter, state in optimizer.state.items():
        values = state.values() if isinstance(state, dict) else ()
        for value in (*values, parameter.grad):
            if isinstance(value, Tensor) and value.device.type == parameter.device.type == "jax":
                yield buffer_of(parameter), buffer_of(value)


def captured_elsewhere(
    fresh: Callable[[], Cached[R]],
    function: Callable[..., object],
    call: Call,
    target: str | None,
    mesh: MeshLike | None,
    shardings: Shardings | None,
) -> tuple[R, Layout | None] | None:
    """The program of a call with tensors on the meta device, or for several chips, and its layout there.

    Returns None for any other call: its program is that of a plain call.

    Raises:
        ValueError: mesh, shardings and target do not fit.
    """
    if target is not None:
        check_target(target)
    elif mesh is not None or shardings is not None:
        raise ValueError(
            "mesh= and shardings= describe the chips of a target: pass target= too, as in target='v5e:2x2'"
        )
    reached = Reached(function, call)
    several = target is not None and (mesh is not None or devices_of(target) > 1)
    if not (several or reached.meta):
        return None
    if target is None or not several:
        return reached.captured(fresh(), call)[0], None
    chips = mesh_of(mesh, target)
    with in_context(chips):  # for specs in sharding constraints
        replay, like = reached.captured(fresh(), call)
    return replay, Layout(chips, shardings, like, replay.inputs_of_outputs())
