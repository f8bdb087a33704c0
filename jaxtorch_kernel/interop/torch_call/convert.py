"""Conversion of dtypes and values under the names of wrap-torch2jax, so that its users only change the import."""

from __future__ import annotations

from typing import Any, Literal

import jax
import numpy as np
import torch
from jax.typing import DTypeLike

from ...storage.dtypes import to_numpy, to_torch
from ..values import to_jax
from ..values import to_torch as to_torch_tree

Via = Literal["dlpack", "host", "cpu"]


def dtype_t2j(dtype: torch.dtype | DTypeLike) -> np.dtype:
    """The JAX dtype of a torch dtype (a JAX dtype is returned unchanged).

    Example:
        >>> dtype_t2j(torch.bfloat16)
        dtype(bfloat16)
    """
    return to_numpy(dtype) if isinstance(dtype, torch.dtype) else np.dtype(dtype)


def dtype_j2t(dtype: torch.dtype | DTypeLike) -> torch.dtype:
    """The torch dtype of a JAX dtype (a torch dtype is returned unchanged).

    Example:
        >>> dtype_j2t(np.float32)
        torch.float32
    """
    return dtype if isinstance(dtype, torch.dtype) else to_torch(np.dtype(dtype))


def t2j(x: torch.Tensor, via: Via = "dlpack") -> jax.Array:
    """Convert a tensor to an array, as `to_jax` does. Gradients do not flow through it.

    Args:
        x: a tensor on any device.
        via: "dlpack" shares the memory where possible; "host" and "cpu" copy.

    Returns:
        The array.

    Raises:
        ValueError: `via` has another value.

    Example:
        >>> t2j(torch.arange(3.0))
        Array([0., 1., 2.], dtype=float32)
    """
    return to_jax(_shared_or_copied(x.detach(), via))


def j2t(x: jax.Array, via: Via = "dlpack") -> torch.Tensor:
    """Convert an array to a tensor, as `to_torch` does.

    Args:
        x: an array.
        via: as in `t2j`.

    Returns:
        The tensor.

    Raises:
        ValueError: `via` has another value.

    Example:
        >>> j2t(t2j(torch.arange(3.0)))
        tensor([0., 1., 2.])
    """
    return _shared_or_copied(to_torch_tree(x), via)


def tree_t2j(xs: object, via: Via = "dlpack") -> Any:
    """Convert the tensors of a pytree to arrays, with `t2j`; other leaves stay as they are."""
    return jax.tree.map(lambda x: t2j(x, via) if isinstance(x, torch.Tensor) else x, xs)


def tree_j2t(xs: object, via: Via = "dlpack") -> Any:
    """Convert the arrays of a pytree to tensors, with `j2t`; other leaves stay as they are."""
    return jax.tree.map(lambda x: j2t(x, via) if isinstance(x, jax.Array) else x, xs)


def _shared_or_copied(tensor: torch.Tensor, via: Via) -> torch.Tensor:
    if via not in ("dlpack", "host", "cpu"):
        raise ValueError(
            f"via must be 'dlpack' (shares memory), 'host' or 'cpu' (both copy), not {via!r}"
        )
    return tensor if via == "dlpack" else tensor.clone()
