"""The default of torch's optimizers on the device: one fused operator for all parameters, as with `fused=True`.

torch's own default is `foreach`, a dozen operators over all parameters. A group of parameters of the device that sets
neither `fused` nor `foreach` is stepped with `fused=True` instead. torch decides this inside `step`, from the settings
of the group, so its hooks around `step` change the setting and restore it. If `step` raises an error, the setting is
restored at the next step.

A group keeps torch's default if the fused operator does not apply: complex parameters, a differentiable step, a
subclass of a tensor, settings that are tensors, momentum that some parameters do not have yet, steps that are counted
in float64. Captured code chooses in the same way, with hooks of its own (`capture/optimizers.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..deferred.switch import switch
from ..native.loading import compiled, take_over
from ..programs import tracing
from ..storage.buffer import wrap
from ..storage.transfer import put

Tensor = torch.Tensor
Optimizer = torch.optim.Optimizer
Group = dict[str, Any]  # a parameter group: `params`, and the settings of the optimizer's class

# The optimizers with a fused operator. A subclass may step differently.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
_COUNTS = ("step",)  # in the state of these
_NUMBERS = (float, int, bool, type(None))
_PLAIN = (Tensor, torch.nn.Parameter)
# The groups that are fused for the current step.
_chosen: weakref.WeakKeyDictionary[Optimizer, list[Group]] = weakref.WeakKeyDictionary()


def install() -> None:
    """Make fused operators the default."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: object) -> None:
    _restore(optimizer)
    switch.boundary()
    if not tracing.active():
        take_over()


def move_counts(optimizer: Optimizer, group: Group, names: Sequence[str] | None = None) -> None:
    """Move the step counts of a group from the CPU to the device.

    Args:
        optimizer: has the state.
        group: one of its groups.
        names: of the counts in the state; otherwise each number there may be one.
    """
    of_parameter = optimizer.state.get
    for p in group["params"]:
        state: Any = of_parameter(p)
        if not isinstance(state, dict):
            continue
        for name in state if names is None else names:
            value = state.get(name)
            if isinstance(value, Tensor) and value.is_cpu and not value.dim():
                # Not by `to`, which a trace would record: a tensor computed from no input is a constant.
                array, spec = put(value.detach().numpy())
                state[name] = wrap(array, spec, (), value.dtype)


def _return_counts(optimizer: Optimizer, group: Group) -> None:
    """Move the step counts of parameters on the CPU there, from the state of an optimizer of the device.

    torch's `load_state_dict` leaves them where they were, because by the settings they are always on the CPU.
    """
    for p in group["params"]:
        state: Any = optimizer.state.get(p)
        step = state.get("step") if state else None
        if not isinstance(step, Tensor) or step.device.type != "jax" or p.device.type != "cpu":
            return
        state["step"] = step.cpu()


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The closure that a step was given, from the arguments of its hook: the optimizer comes first."""
    return kwargs.get("closure") if len(args) < 2 else args[1]


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Choose before the step, or once the closure has computed gradients."""
    if type(optimizer) not in _FUSED or tracing.active():
        return None
    _restore(optimizer)
    closure = closure_of(args, kwargs)
    if closure is None:
        _choose(optimizer)
        return None

    def computed() -> object:
        loss = closure()
        _choose(optimizer)
        return loss

    return (args[0], computed), {}


def _choose(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if is_fusible(optimizer, group):
            move_counts(optimizer, group, _COUNTS)
            group["fused"] = True
            _chosen.setdefault(optimizer, []).append(group)
        else:
            _return_counts(optimizer, group)


def _restore(optimizer: Optimizer) -> None:
    for group in _chosen.pop(optimizer, ()):
        group["fused"] = None


def is_fusible(optimizer: Optimizer, group: Group) -> bool:
    """Whether a group is stepped by torch's default, and the fused operator computes the same."""
    if type(optimizer) not in _FUSED:
        return False
    if not ("fused" in group and group["fused"] is None and group["foreach"] is None):
        return False
    if torch.get_default_dtype() == torch.float64 and "momentum" not in group:
        return False  # then torch counts steps in float64, but those of a fused operator in float32
    if group["differentiable"] or not are_plain(group["params"]):
        return False
    # Numbers first: they are nearly all of the settings.
    others = [item for item in group.items() if type(item[1]) not in _NUMBERS]
    if not all(map(_is_plain_setting, others)):
        return False
    if not group.get("momentum"):
        return True
    params = [p for p in group["params"] if p.grad is not None]
    missing = [optimizer.state.get(p, {}).get("momentum_buffer") is None for p in params]
    return all(missing) or not any(missing)


@compiled
def are_plain(params: Sequence[Tensor]) -> bool:
    """Whether fused operators take parameters: on the device, real, of torch's own classes, and so their gradients."""
    return all(map(_is_plain, params))


def _is_plain(p: Tensor) -> bool:
    grad, dtype = p.grad, p.dtype
    # torch's stubs lack `is_jax`: it is made when the device gets its name. `p.device.type` takes twice as long.
    if type(p) not in _PLAIN or not p.is_jax or not dtype.is_floating_point:  # type: ignore[attr-defined]
        return False
    if grad is None:
        return True
    return type(grad) in _PLAIN and grad.dtype is dtype and not grad.requires_grad


def _is_plain_setting(item: tuple[str, Any]) -> bool:
    """Whether all of torch's implementations accept a setting: not a tensor, except as `lr`."""
    name, value = item
    if name == "params":
        return True
    if isinstance(value, tuple | list):
        return not any(isinstance(v, Tensor) for v in value)
    if not isinstance(value, Tensor):
        return True
    return name == "lr" and not value.dim() and not value.requires_grad
