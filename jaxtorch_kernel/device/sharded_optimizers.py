"""Gradients and the state of optimizers lie as their parameters do.

XLA chooses how the result of a backward operator lies on the mesh, and it may be another way than the parameter. State
that an optimizer creates lies like the gradient (`clone`) or on one device (`empty_like`). So gradients are laid out
before each step, and state after it. Later steps find them where they belong.
"""

from __future__ import annotations

import jax
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
    """Lay out gradients and state at each step of an optimizer."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if not placement.any_mesh or tracing.active():
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _lay_out(parameter.grad, parameter)


def _after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if not placement.any_mesh or tracing.active():
        return
    for parameter, state in optimizer.state.items():
        for value in state.values() if isinstance(state, dict) else ():
            _lay_out(value, parameter)


def _lay_out(value: object, parameter: object) -> None:
    """Move a tensor with as many elements as a parameter on a mesh to where the parameter lies."""
    if not (is_device_tensor(value) and is_device_tensor(parameter)):
        return
    to, of = attached(parameter.untyped_storage()), attached(value.untyped_storage())
    if to is None or of is None:  # a wrapper, without data of its own
        return
    where, spec = to.spec.placement, of.spec
    if placement.on_mesh(where) and spec.shape == to.spec.shape and spec.placement != where:
        array = jax.device_put(of.array, where)
        of.write(array, spec_of(spec.dtype, spec.shape, where))
