"""New `jax.Array`s from host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from . import placement


def placed(array: np.ndarray, where: Any = None) -> tuple[Any, Any]:
    """A NumPy array without other writers, placed as `where` or on the current device; returns it and its sharding."""
    sharding = placement.current() if where is None else where
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return jax.device_put(array, sharding), sharding


def in_host_memory(make: Callable[[], np.ndarray]) -> np.ndarray:
    """The result of `make`, with torch's error if NumPy runs out of memory."""
    try:
        return make()
    except MemoryError as error:
        raise torch.OutOfMemoryError(
            f"{error} on the host, while copying to the jax device"
        ) from None
