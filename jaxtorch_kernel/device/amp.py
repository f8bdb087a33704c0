"""`torch.jax.amp`: the names of `torch.cuda.amp`, for the device.

`torch.autocast("jax", dtype)` and `torch.amp` do the work; `autocast.py` says which operators run in which precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.autocast):
    """`torch.autocast("jax", dtype)`, as a context or a decorator."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True
    ):
        super().__init__("jax", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("jax")`."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ):
        super().__init__("jax", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(
    fwd: Callable[_P, _R] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Callable[_P, _R]:
    """`torch.amp.custom_fwd` for the device: decorates the `forward` of a `torch.autograd.Function`."""
    return torch.amp.custom_fwd(fwd, device_type="jax", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[_P, _R]) -> Callable[_P, _R]:
    """`torch.amp.custom_bwd` for the device: decorates the `backward` of a `torch.autograd.Function`."""
    return torch.amp.custom_bwd(bwd, device_type="jax")
