"""Each row of the table of dtypes, compared with torch's CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from jaxtorch.storage.dtypes import DTYPES, TABLE, DtypeRow, to_numpy, to_torch

FLOATS = [d for d in DTYPES if d.is_floating_point]
FLOAT8 = [d for d in FLOATS if d.itemsize == 1]
# Values that float32 rounds to a neighbour, that overflow small types, and that are special.
VALUES = [
    0.0,
    1.0,
    1.0625,
    -1.0625,
    3.3,
    240,
    448,
    449,
    463,
    465,
    57344,
    61440,
    6e4,
    1e5,
    1e-3,
    1e-7,
    1e38,
]
SPECIAL = [math.inf, -math.inf, math.nan]


def every_bit_pattern(dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of all 256 values of a dtype of one byte, and 512 values of any other."""
    count = 2 if dtype == torch.bool else 256
    ramp = torch.arange(count, dtype=torch.uint8)
    return ramp.bool() if dtype == torch.bool else ramp.repeat(2 * dtype.itemsize).view(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def message(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "no error"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_names_are_torchs(row: DtypeRow) -> None:
    assert torch.empty(0, dtype=row.torch).type() == f"torch.{row.name}Tensor"
    other = torch.float64 if row.torch == torch.float32 else torch.float32
    mixed = message(lambda: torch.mm(torch.ones(1, 1).to(row.torch), torch.ones(1, 1).to(other)))
    assert f": {row.c_name} != " in mixed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transfers_keep_every_bit(dtype: torch.dtype) -> None:
    host = every_bit_pattern(dtype)
    device = host.jax()
    assert device.dtype == dtype
    assert to_torch(to_numpy(dtype)) == dtype
    assert torch.equal(bits(device), bits(host))
    assert torch.equal(bits(device.clone()), bits(host))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_conversion_from_float32(dtype: torch.dtype) -> None:
    values = torch.tensor(VALUES + SPECIAL)
    if dtype == torch.float8_e8m0fnu:
        values = values[values > 0]  # it has neither 0 nor signs
    expected, actual = values.to(dtype), values.jax().to(dtype).cpu()
    assert torch.equal(expected.isnan(), actual.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(expected.float()[numbers], actual.float()[numbers])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_conversion_to_float32(dtype: torch.dtype) -> None:
    host = every_bit_pattern(dtype)
    if dtype.is_complex:
        host = host.real
    expected = host.to(torch.float32)
    # XLA's CPU flushes subnormal numbers to 0, and a double may become one.
    normal = (expected == 0) | ~(expected.abs() < torch.finfo(torch.float32).tiny)
    actual = host[normal].jax().to(torch.float32).cpu()
    torch.testing.assert_close(actual, expected[normal], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "value", [0.0, -1, -1.0, 200, 300, -40_000, 1 << 40, 500.0, 1e6, 1e39, 1e300]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_number_that_does_not_fit(dtype: torch.dtype, value: float) -> None:
    expected = message(lambda: torch.ones(2).to(dtype).fill_(value))
    assert message(lambda: torch.ones(2).to(dtype).jax().fill_(value)) == expected
