"""Linear algebra refuses what the CPU refuses, with the CPU's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

zeros, ones, eye = torch.zeros, torch.ones, torch.eye

# Matrices that cannot be factored, inverted or solved with.
SINGULAR: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda d: torch.linalg.cholesky(-eye(3, device=d)),
    "cholesky of a later minor": lambda d: torch.linalg.cholesky(
        torch.tensor([[1.0, 2.0], [2.0, 1.0]], device=d)
    ),
    "cholesky of a batch": lambda d: torch.linalg.cholesky(
        torch.stack([eye(3, device=d), -eye(3, device=d)])
    ),
    "cholesky of complex numbers": lambda d: torch.linalg.cholesky(
        -eye(3, device=d, dtype=torch.complex128)
    ),
    "cholesky_ex": lambda d: torch.linalg.cholesky_ex(-eye(3, device=d), check_errors=True),
    "cholesky_inverse": lambda d: torch.cholesky_inverse(zeros(2, 2, device=d)),
    "inv": lambda d: torch.linalg.inv(zeros(2, 2, device=d)),
    "inv of a batch": lambda d: torch.linalg.inv(torch.stack([eye(2), zeros(2, 2)]).to(d)),
    "inv of rank one": lambda d: torch.linalg.inv(ones(2, 2, device=d)),
    "inv_ex": lambda d: torch.linalg.inv_ex(zeros(2, 2, device=d), check_errors=True),
    "solve": lambda d: torch.linalg.solve(zeros(2, 2, device=d), ones(2, device=d)),
    "solve_ex": lambda d: torch.linalg.solve_ex(
        zeros(2, 3, 3, device=d), ones(3, 1, device=d), check_errors=True
    ),
    "lu_factor": lambda d: torch.linalg.lu_factor(zeros(3, 3, device=d)),
    "lu_factor_ex": lambda d: torch.linalg.lu_factor_ex(zeros(3, 3, device=d), check_errors=True),
    "tensorinv": lambda d: torch.linalg.tensorinv(zeros(4, 2, 2, device=d), ind=1),
}

# Shapes, dtypes and arguments that do not fit.
MISFITS: dict[str, Callable[[Any], Any]] = {
    "mm": lambda d: ones(2, 3, device=d) @ ones(2, 3, device=d),
    "mm of two dtypes": lambda d: ones(2, 2, device=d) @ ones(2, 2, device=d, dtype=torch.float64),
    "bmm": lambda d: torch.bmm(ones(2, 3, 4, device=d), ones(3, 4, 5, device=d)),
    "addmm": lambda d: torch.addmm(ones(5, device=d), ones(2, 3, device=d), ones(3, 4, device=d)),
    "dot": lambda d: torch.dot(ones(2, device=d), ones(3, device=d)),
    "mv": lambda d: torch.mv(ones(2, 3, device=d), ones(2, device=d)),
    "inv": lambda d: torch.linalg.inv(ones(2, 3, device=d)),
    "det": lambda d: torch.linalg.det(ones(2, 3, device=d)),
    "det of a vector": lambda d: torch.linalg.det(ones(3, device=d)),
    "solve": lambda d: torch.linalg.solve(eye(3, device=d), ones(2, 1, device=d)),
    "cholesky": lambda d: torch.linalg.cholesky(ones(2, 3, device=d)),
    "cholesky of integers": lambda d: torch.linalg.cholesky(eye(2, device=d, dtype=torch.int64)),
    "eigh": lambda d: torch.linalg.eigh(ones(2, 3, device=d)),
    "qr": lambda d: torch.linalg.qr(ones(2, 3, device=d), mode="other"),
    "cross": lambda d: torch.linalg.cross(ones(4, device=d), ones(4, device=d)),
    "matrix_exp": lambda d: torch.linalg.matrix_exp(ones(2, 3, device=d)),
    "lstsq": lambda d: torch.linalg.lstsq(ones(3, 2, device=d), ones(4, device=d)),
    "lstsq of a vector": lambda d: torch.linalg.lstsq(ones(3, device=d), ones(3, device=d)),
    "lstsq of two dtypes": lambda d: torch.linalg.lstsq(
        ones(3, 2, device=d), ones(3, 1, device=d, dtype=torch.float64)
    ),
    "lstsq's driver": lambda d: torch.linalg.lstsq(
        ones(3, 2, device=d), ones(3, 1, device=d), driver="other"
    ),
    "rfft of complex numbers": lambda d: torch.fft.rfft(ones(4, device=d, dtype=torch.complex64)),
    "fft of no points": lambda d: torch.fft.fft(ones(4, device=d), n=0),
    "fft along a missing dimension": lambda d: torch.fft.fft(ones(4, device=d), dim=3),
}


def _error(call: Callable[[Any], Any], device: str) -> Exception:
    with pytest.raises((RuntimeError, IndexError)) as caught:
        call(device)
    return caught.value


@pytest.mark.parametrize("name", SINGULAR)
def test_singular_matrices_raise_torchs_error(name: str) -> None:
    expected = _error(SINGULAR[name], "cpu")
    actual = _error(SINGULAR[name], "jax")
    assert type(actual) is type(expected)
    assert str(actual) == str(expected)


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_raise_torchs_error(name: str) -> None:
    expected = _error(MISFITS[name], "cpu")
    actual = _error(MISFITS[name], "jax")
    assert type(actual) is type(expected)
    assert str(actual).splitlines()[0] == str(expected).splitlines()[0]


def test_info_is_left_to_the_caller_without_check_errors() -> None:
    info = torch.linalg.cholesky_ex(torch.diag(torch.tensor([1.0, 1.0, -1.0])).to("jax")).info
    assert info.dtype == torch.int32
    assert info.item() == 3
    assert torch.linalg.inv_ex(zeros(2, 2, device="jax")).info.item() == 1
