"""Hollow arrays: shape and dtype without memory, for programs that are lowered and never run.

A hollow array is a NumPy array of zeros whose strides are 0, so it takes a few bytes at any size. JAX treats it as a
constant while it traces, and wraps it in a view. The view has the same address, and no two hollow arrays share one, so
they are distinguished by address where other constants are distinguished by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from . import placement
from .buffer import tensor_over
from .dtypes import to_numpy
from .transfer import put

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding


class Hollow(np.ndarray):
    """An array of zeros that takes no memory. Its sharding is that of a new array."""

    @property
    def sharding(self) -> Sharding:
        """The sharding that it would have."""
        return placement.current()


def hollow_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of the device over a hollow array; over an array with memory if it has no dimensions."""
    zero = np.zeros((), to_numpy(dtype))
    if (
        not shape
    ):  # JAX writes a number of NumPy's into the program, so it could not become an input
        return tensor_over(put(zero)[0])
    array = np.broadcast_to(zero, tuple(shape)).view(Hollow)
    return tensor_over(cast("jax.Array", array))


def is_hollow(array: object) -> bool:
    """Whether an array is hollow."""
    return isinstance(array, Hollow)


def identity(constant: object) -> tuple[str, int]:
    """A key that distinguishes a constant of a trace from all others."""
    if isinstance(constant, np.ndarray):
        return "address", constant.ctypes.data
    return "object", id(constant)
