"""dtypes and values by the names of wrap-torch2jax, so that its users change the import alone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from ...storage.dtypes import to_numpy, to_torch
from ..values import to_jax
from ..values import to_torch as to_torch_tree


def dtype_t2j(dtype: Any) -> np.dtype:
    """The JAX dtype of a torch dtype (or of a JAX one: itself).

    Example:
        >>> dtype_t2j(torch.bfloat16)
        dtype(bfloat16)
    """
    return to_numpy(dtype) if isinstance(dtype, torch.dtype) else np.dtype(dtype)


def dtype_j2t(dtype: Any) -> torch.dtype:
    """The torch dtype of a JAX dtype (or of a torch one: itself).

    Example:
        >>> dtype_j2t(np.float32)
        torch.float32
    """
    return dtype if isinstance(dtype, torch.dtype) else to_torch(np.dtype(dtype))


def t2j(x: torch.Tensor) -> jax.Array:
    """A tensor as an array: `to_jax`."""
    return to_jax(x)  # type: ignore[no-any-return]


def j2t(x: jax.Array) -> torch.Tensor:
    """An array as a tensor: `to_torch`."""
    return to_torch_tree(x)  # type: ignore[no-any-return]


def tree_t2j(xs: Any) -> Any:
    """A pytree with arrays for its tensors: `to_jax`."""
    return to_jax(xs)


def tree_j2t(xs: Any) -> Any:
    """A pytree with tensors for its arrays: `to_torch`."""
    return to_torch_tree(xs)
