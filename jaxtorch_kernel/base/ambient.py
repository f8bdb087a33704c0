"""The global state of torch, JAX and this library that affects what a program computes.

It is part of the key of every program. An eager operator depends only on some of it (`eager`): torch applies the rest
(autograd's modes, autocast, the default device) before it calls the operator.
"""

from __future__ import annotations

from typing import Any

import torch

from . import torch_private as private
from .jax_meshes import devices_of_context
from .jax_private import trace_context
from .options import config

_default_dtype = torch.get_default_dtype
_precision = torch.get_float32_matmul_precision
_grad_enabled = torch.is_grad_enabled
_inference = torch.is_inference_mode_enabled
_any_autocast = private.any_autocast
_autocast_enabled = torch.is_autocast_enabled
_autocast_dtype = torch.get_autocast_dtype
_deterministic = torch.get_deterministic_debug_mode
_open_modes = private.open_modes


def eager() -> list[Any]:
    """The state that an eager operator depends on, as a new list: the beginning of the operator's key."""
    return [config._base if not config._open else config.options(), _default_dtype(), _precision()]


def of_jax() -> tuple[Any, ...]:
    """The state that a JAX function called from torch depends on. torch itself handles autograd's modes."""
    return (*eager(), trace_context(), devices_of_context())


def ambient() -> tuple[Any, ...]:
    """The state that captured code depends on."""
    return (
        config._base if not config._open else config.options(),
        _default_dtype(),
        _precision(),
        _grad_enabled(),
        _inference(),
        _autocast_dtype("jax") if _any_autocast() and _autocast_enabled("jax") else None,
        _open_modes(),
        _deterministic(),
        trace_context(),
        devices_of_context(),
    )


NAMES = (
    "jaxtorch.config",
    "torch.get_default_dtype()",
    "torch.get_float32_matmul_precision()",
    "torch.is_grad_enabled()",
    "torch.is_inference_mode_enabled()",
    "autocast",
    "torch.get_default_device()",
    "torch.get_deterministic_debug_mode()",
    "jax.config",
    "jax.set_mesh",
)
