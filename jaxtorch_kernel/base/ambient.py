"""The state of torch, JAX and this library that decides what a program computes, whatever the code says.

Every program is keyed by it. An eager operator depends on a part of it (`eager`): torch applies the rest before it
calls the operator (autograd's modes, autocast, the default device).
"""

from __future__ import annotations

from typing import Any

import torch

from . import torch_private as private
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
    """What an eager operator depends on: a new list, for its key to begin with."""
    return [config._base if not config._open else config.options(), _default_dtype(), _precision()]


def of_jax() -> tuple[Any, ...]:
    """What a JAX function depends on that torch code calls: autograd's modes are torch's affair."""
    return (*eager(), trace_context())


def ambient() -> tuple[Any, ...]:
    """What captured code depends on."""
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
)
