"""New JAX arrays from host memory."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import torch
from jax.sharding import Sharding

from . import placement


def placed(array: np.ndarray, sharding: Sharding | None = None) -> tuple[jax.Array, Sharding]:
    """Put a NumPy array that nothing else writes to on a sharding, by default that of the current device.

    Returns the JAX array and its sharding.
    """
    sharding = placement.current() if sharding is None else sharding
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return jax.device_put(array, sharding), sharding


def in_host_memory(make: Callable[[], np.ndarray]) -> np.ndarray:
    """Call `make`; raise torch's error if NumPy runs out of memory."""
    try:
        return make()
    except MemoryError as error:
        raise torch.OutOfMemoryError(
            f"{error} on the host, while copying to the jax device"
        ) from None
