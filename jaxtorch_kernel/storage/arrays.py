"""New `jax.Array`s of host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from . import placement


def placed(array: np.ndarray, where: Any = None) -> tuple[Any, Any]:
    """A NumPy array that nobody else writes to, placed as `where` or on the current device; and where that is."""
    sharding = placement.current() if where is None else where
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return jax.device_put(array, sharding), sharding


def in_host_memory(make: Callable[[], np.ndarray]) -> np.ndarray:
    """What `make` gives, with torch's error where NumPy gets no memory for it."""
    try:
        return make()
    except MemoryError as error:
        raise torch.OutOfMemoryError(f"{error} on the host, on its way to the jax device") from None
