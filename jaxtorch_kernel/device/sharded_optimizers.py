"""Gradients and optimizer state get the sharding of their parameters.

XLA chooses the sharding of a backward operator's result, which may differ from the parameter's. State that an optimizer
creates has the sharding of the gradient (`clone`) or is on one device (`empty_like`). So gradients are moved to the
parameter's sharding before each step, and state after it.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..programs import tracing
from ..programs.trees import is_device_tensor
from ..storage import placement
from ..storage.buffer import attached, spec_of


def install() -> None:
    """Register hooks that move gradients and state at each step of an optimizer."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if not placement.any_mesh or tracing.active():
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _reshard(parameter.grad, parameter)
    shard_state(optimizer)  # the parameters may have moved since the last step


def _after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if placement.any_mesh and not tracing.active():
        shard_state(optimizer)


def shard_state(optimizer: torch.optim.Optimizer) -> None:
    """Move the state of an optimizer to the shardings of its parameters."""
    for parameter, state in optimizer.state.items():
        for value in state.values() if isinstance(state, dict) else ():
            _reshard(value, parameter)


def _reshard(value: object, parameter: object) -> None:
    """Move a value to the sharding of a parameter on a mesh, if it has the same shape; else replicate it over the mesh.

    A count of steps on one device would be copied to the mesh at each step, and captured code would be retraced
    when its program had written it there.
    """
    if not (is_device_tensor(value) and is_device_tensor(parameter)):
        return
    to, of = attached(parameter.untyped_storage()), attached(value.untyped_storage())
    if to is None or of is None:  # a wrapper, without data of its own
        return
    where, spec = to.spec.placement, of.spec
    if not placement.on_mesh(where):
        return
    if spec.shape != to.spec.shape:
        # It may be sharded there. Across processes, code that reads a count needs it in its own.
        if spec.placement.device_set == where.device_set or not where.is_fully_addressable:
            return
        where = placement.replicated(where)
    if spec.placement != where:
        array = placement.moved(of.array, where)
        of.write(array, spec_of(spec.dtype, spec.shape, where))
