"""Conversion between torch dtypes and NumPy dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

_PAIRS: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
_BACK = {numpy: tensor for tensor, numpy in _PAIRS.items()}


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype of a torch dtype.

    Raises:
        TypeError: XLA has no such dtype (quantized types, complex32).

    Example:
        >>> to_numpy(torch.int64)
        dtype('int64')
    """
    try:
        return _PAIRS[dtype]
    except KeyError:
        raise TypeError(
            f"the jax device does not support {dtype}: XLA has no such dtype. "
            f"Convert before moving, for example with .to(torch.float32)."
        ) from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """The torch dtype of a NumPy (or ml_dtypes) dtype.

    Example:
        >>> to_torch(np.dtype("float32"))
        torch.float32
    """
    try:
        return _BACK[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"torch has no dtype for JAX's {dtype}.") from None
