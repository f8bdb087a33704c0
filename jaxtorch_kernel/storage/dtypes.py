"""The table of dtypes that torch and XLA share, and conversion between torch's and NumPy's.

Everything that depends on the individual dtype is in the table; other files derive what they need from its rows or from
the NumPy dtype (kind, size, range). bfloat16 and the float8 types are extensions of NumPy by ml_dtypes.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import torch


class DtypeRow(NamedTuple):
    """One dtype.

    Attributes:
        name: torch's name for it in messages about results ("Float").
        c_name: its C++ type, which torch's other messages name ("float").
    """

    torch: torch.dtype
    numpy: np.dtype
    name: str
    c_name: str


def _row(dtype: torch.dtype, scalar: type, name: str, c_name: str | None = None) -> DtypeRow:
    """A row; `c_name` may be left out for types that torch defines itself."""
    return DtypeRow(dtype, np.dtype(scalar), name, c_name or f"c10::{name}")


TABLE = (
    _row(torch.bool, np.bool_, "Bool", "bool"),
    _row(torch.uint8, np.uint8, "Byte", "unsigned char"),
    _row(torch.uint16, np.uint16, "UInt16", "short unsigned int"),
    _row(torch.uint32, np.uint32, "UInt32", "unsigned int"),
    _row(torch.uint64, np.uint64, "UInt64", "long unsigned int"),
    _row(torch.int8, np.int8, "Char", "signed char"),
    _row(torch.int16, np.int16, "Short", "short int"),
    _row(torch.int32, np.int32, "Int", "int"),
    _row(torch.int64, np.int64, "Long", "long int"),
    _row(torch.float16, np.float16, "Half"),
    _row(torch.bfloat16, ml_dtypes.bfloat16, "BFloat16"),
    _row(torch.float32, np.float32, "Float", "float"),
    _row(torch.float64, np.float64, "Double", "double"),
    _row(torch.complex64, np.complex64, "ComplexFloat", "c10::complex<float>"),
    _row(torch.complex128, np.complex128, "ComplexDouble", "c10::complex<double>"),
    _row(torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, "Float8_e4m3fn"),
    _row(torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz, "Float8_e4m3fnuz"),
    _row(torch.float8_e5m2, ml_dtypes.float8_e5m2, "Float8_e5m2"),
    _row(torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz, "Float8_e5m2fnuz"),
    _row(torch.float8_e8m0fnu, ml_dtypes.float8_e8m0fnu, "Float8_e8m0fnu"),
)
DTYPES = tuple(row.torch for row in TABLE)
_OF_TORCH = {row.torch: row for row in TABLE}
_OF_NUMPY = {row.numpy: row for row in TABLE}


def row_of(dtype: torch.dtype | np.dtype) -> DtypeRow | None:
    """The row of a torch or NumPy dtype, or None if the table does not have it."""
    return _OF_TORCH.get(dtype) if isinstance(dtype, torch.dtype) else _OF_NUMPY.get(dtype)


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype of a torch dtype.

    Raises:
        TypeError: XLA has no such dtype (quantized types, complex32).

    Example:
        >>> to_numpy(torch.int64)
        dtype('int64')
    """
    try:
        return _OF_TORCH[dtype].numpy
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
        return _OF_NUMPY[np.dtype(dtype)].torch
    except KeyError:
        raise TypeError(f"torch has no dtype for JAX's {dtype}.") from None
