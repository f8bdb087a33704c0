"""The state of optimizers that step in a trace: which buffers are part of it, and what its first step creates."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import jax
import torch

from ..programs.trees import is_device_tensor
from ..storage.buffer import Buffer, buffer_of

Tensor = torch.Tensor
_values_of = dict.values


class StateOf:
    """The buffers in the state of optimizers, looked up again whenever a step has added some."""

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self._size = 0
        self._buffers: dict[int, weakref.ref[Buffer]] = {}

    def contains(self, buffer: Buffer) -> bool:
        """Whether the buffer is in the state."""
        states = [state for o in self.optimizers for state in o.state.values()]
        size = sum(map(len, map(_parts, states)))
        if size != self._size:
            self._size = size
            buffers = [buffer_of(v) for s in states for v in _parts(s) if is_device_tensor(v)]
            self._buffers = {id(b): weakref.ref(b) for b in buffers}
        reference = self._buffers.get(id(buffer))
        return reference is not None and reference() is buffer


def state_values(state: Mapping[Tensor, Any]) -> Iterable[object]:
    """The values in an optimizer's state."""
    try:
        return [*chain.from_iterable(map(_values_of, state.values()))]
    except TypeError:  # torch has a dictionary for each parameter; optimizers of other libraries may have other objects
        return chain.from_iterable(map(_parts, state.values()))


def tensor_ids(state: Mapping[Tensor, object]) -> Iterator[int]:
    """The identities of the device's tensors in an optimizer's state."""
    return (id(value) for value in state_values(state) if is_device_tensor(value))


def holds_tracers(state: object) -> bool:
    """Whether a tensor in an optimizer's state for a parameter has no value outside the trace."""
    tensors = filter(is_device_tensor, _parts(state))
    return any(isinstance(buffer_of(t).array, jax.core.Tracer) for t in tensors)


def _parts(state: object) -> Collection[object]:
    if isinstance(state, dict):
        return state.values()
    return state if isinstance(state, list | tuple) else (state,)


def is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch's own code creates the state, at the first step; other code may create it at each."""
    functions = type(optimizer).step, getattr(type(optimizer), "_init_group", None)
    return all(getattr(f, "__module__", "").startswith("torch.optim.") for f in functions)


def create_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state that the next step of torch's optimizer would create."""
    init_group: Any = optimizer._init_group  # type: ignore[attr-defined]  # checked by `is_torchs`
    lists = len(inspect.signature(init_group).parameters) - 1
    with torch.no_grad():
        for group in optimizer.param_groups:
            init_group(group, *([] for _ in range(lists)))


class SavedState:
    """The state of an optimizer before it steps in a trace."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.by_parameter: dict[Tensor, object] = {
            p: copy.copy(s) for p, s in optimizer.state.items()
        }
        # Step counts, which torch keeps on the CPU: a step adds to them in place.
        self._counts = [
            (value, value.clone())
            for value in state_values(optimizer.state)
            if isinstance(value, Tensor) and value.device.type == "cpu" and value.dim() == 0
        ]

    def restore(self) -> None:
        """Take back what a failed trace did to the state."""
        self.optimizer.state.clear()
        self.optimizer.state.update(self.by_parameter)
        for count, value in self._counts:
            count.copy_(value)


def add_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give SGD the momentum that makes its first step like all others, so that one program runs both.

    torch's first step stores the gradient itself. Later ones compute `momentum * buffer + gradient`, which is the
    gradient to the last bit if the buffer is -0.0, as long as nothing dampens the gradient.
    """
    if type(optimizer).step is not torch.optim.SGD.step:
        return
    groups = [g for g in optimizer.param_groups if g["momentum"] and not g["dampening"]]
    for p in (p for group in groups for p in group["params"]):
        if p.grad is None or not p.is_floating_point() or not is_device_tensor(p):
            continue
        if optimizer.state[p].get("momentum_buffer") is None:
            optimizer.state[p]["momentum_buffer"] = torch.full_like(p, -0.0)
