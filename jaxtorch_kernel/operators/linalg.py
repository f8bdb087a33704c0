"""Linear algebra operators that need more than one program, because they read `info` or depend on strides.

For a determinant torch factors the transpose of a contiguous real matrix, which saves a copy, and its gradient
formulas rely on those factors (`_TRANSPOSING`). Whether a matrix is singular or positive definite is known only after
the factorization (`check_errors`). Inside a trace this cannot be checked, and the result is the output of the
factorization.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..base import torch_private as private
from ..base.torch_private import OpOverload, overload
from ..dispatch.cpu import on_cpu
from ..dispatch.operation import Operation
from ..dispatch.registry import kernel
from ..dispatch.schema import Kernel, Signature
from ..dispatch.targets import write_out
from ..lowerings import lu
from ..lowerings.registry import Lowering
from ..lowerings.solvers import cholesky_inverse, least_squares
from ..programs import tracing
from ..storage import placement
from .choice import operation_of

Tensor = torch.Tensor
aten = torch.ops.aten


@kernel("_linalg_check_errors")
def check_errors(infos: Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Raise torch's own error for the first factorization that failed. Waits for `infos`."""
    if not tracing.active():
        private.check_linalg_errors(infos.cpu(), api_name, is_matrix=is_matrix)


def _transposing(op: OpOverload, function: Kernel) -> Kernel:
    plain = Operation(op, Lowering(function))
    transposed = Operation(op, Lowering(functools.partial(function, transposed=True)))

    def run(A: Tensor, *args: object, **kwargs: object) -> object:
        transpose = A.is_contiguous() and not A.is_complex()
        return (transposed if transpose else plain)(A, *args, **kwargs)

    return run


def _checking(op: OpOverload, run: Kernel, api_name: str) -> Kernel:
    names = [r.name for r in op._schema.returns]

    def checked(A: Tensor, *args: object, check_errors: bool = False, **kwargs: object) -> Any:
        result = run(A, *args, check_errors=check_errors, **kwargs)
        if check_errors:
            info = result[names.index("info")]
            aten._linalg_check_errors(info, api_name, is_matrix=A.dim() == 2)
        return result

    return checked


_TRANSPOSING: dict[str, Kernel] = {
    "_linalg_det": lu.det,
    "_linalg_slogdet": lu.slogdet,
}
# Operators that take `check_errors`, and the name that torch's message gives them.
_CHECKING: dict[str, str] = {
    "linalg_cholesky_ex": "linalg.cholesky_ex",
    "linalg_cholesky_ex.L": "linalg.cholesky_ex",
    "linalg_inv_ex": "linalg.inv_ex",
    "linalg_inv_ex.inverse": "linalg.inv_ex",
    "linalg_lu_factor_ex": "torch.linalg.lu_factor_ex",
    "linalg_lu_factor_ex.out": "torch.linalg.lu_factor_ex",
    "linalg_ldl_factor_ex": "torch.linalg.ldl_factor_ex",
    "linalg_ldl_factor_ex.out": "torch.linalg.ldl_factor_ex",
    "_linalg_solve_ex": "torch.linalg.solve_ex",
    "_linalg_solve_ex.result": "torch.linalg.solve_ex",
}


def _later(op: OpOverload) -> Kernel:
    # An Operation can be made only after all lowerings are registered.
    return lambda *args, **kwargs: operation_of(op)(*args, **kwargs)


for _name in {**_TRANSPOSING, **_CHECKING}:
    if (_op := overload(_name)) is not None:
        _run = _transposing(_op, _TRANSPOSING[_name]) if _name in _TRANSPOSING else _later(_op)
        kernel(_name)(_checking(_op, _run, _CHECKING[_name]) if _name in _CHECKING else _run)


if hasattr(aten, "cholesky"):  # torch 2.14 removed it

    @kernel("cholesky")
    def cholesky(self: Tensor, upper: bool = False) -> Tensor:
        """The factor, or torch's error if the matrix is not positive-definite."""
        factor, info = aten.linalg_cholesky_ex.default(self, upper=upper)
        aten._linalg_check_errors(info, "cholesky", is_matrix=self.dim() == 2)
        return factor

    @kernel("cholesky.out")
    def cholesky_out(self: Tensor, upper: bool = False, *, out: Tensor) -> Tensor:
        """`cholesky` into a tensor that is resized."""
        return write_out(out, cholesky(self, upper))


_inverse_of_factor = Operation(
    overload("cholesky_inverse"), Lowering(cholesky_inverse), name="cholesky_inverse"
)
_first_zero = Operation(None, Lowering(lu.first_zero_pivot), name="cholesky_inverse")


@kernel("cholesky_inverse")
def checked_cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix with this factor, or torch's error for a zero on the diagonal."""
    inverse = _inverse_of_factor(self, upper)
    aten._linalg_check_errors(_first_zero(self), "cholesky_inverse", is_matrix=self.dim() == 2)
    return inverse


@kernel("cholesky_inverse.out")
def cholesky_inverse_out(self: Tensor, upper: bool = False, *, out: Tensor) -> Tensor:
    """`cholesky_inverse` into a tensor that is resized."""
    return write_out(out, checked_cholesky_inverse(self, upper))


def _with_eigenvalues(op: OpOverload) -> Kernel:
    """Eigenvalues of a general matrix: JAX computes them on CPUs and GPUs, torch's CPU kernel for other platforms."""
    on_device = _later(op)
    signature = Signature(op)

    def run(*args: object, **kwargs: object) -> object:
        platform = placement.devices()[placement.index()].platform
        if platform in ("cpu", "gpu"):
            return on_device(*args, **kwargs)
        return on_cpu(op, signature, args, kwargs)

    return run


for _name in ("linalg_eig", "linalg_eig.out", "_linalg_eigvals"):
    if (_op := overload(_name)) is not None:
        kernel(_name)(_with_eigenvalues(_op))


@kernel("linalg_eigvals.out")
def eigvals_out(self: Tensor, *, out: Tensor) -> Tensor:
    """The eigenvalues into a tensor that is resized."""
    return write_out(out, aten._linalg_eigvals.default(self))


_least_squares = Operation(None, Lowering(least_squares), name="linalg_lstsq")
_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@kernel("linalg_lstsq")
def lstsq(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Least squares. As in torch, the driver determines which of the four results have elements."""
    driver = driver or "gelsy"
    vector = _check_least_squares(self, b, driver)
    right = b.unsqueeze(-1) if vector else b
    rcond = None if rcond is None else float(rcond)
    solution, residuals, rank, singular = _least_squares(self, right, rcond, driver)
    m, n = self.shape[-2:]
    overdetermined = m > n and driver != "gelsy"
    if overdetermined and driver != "gels":
        overdetermined = bool((rank == n).all())
    return (
        solution.squeeze(-1) if vector else solution,
        residuals if overdetermined else residuals.new_empty(0),
        rank if driver != "gels" else rank.new_empty(0),
        singular if driver in ("gelsd", "gelss") else singular.new_empty(0),
    )


@kernel("linalg_lstsq.out")
def lstsq_out(
    self: Tensor,
    b: Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
    solution: Tensor,
    residuals: Tensor,
    rank: Tensor,
    singular_values: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`linalg_lstsq` into tensors that are resized."""
    outs = (solution, residuals, rank, singular_values)
    for out, result in zip(outs, lstsq(self, b, rcond, driver=driver), strict=True):
        write_out(out, result)
    return outs


def _check_least_squares(a: Tensor, b: Tensor, driver: str) -> bool:
    """Whether `b` is a vector for each matrix in `a`.

    Raises:
        RuntimeError: torch's error for invalid shapes, dtypes or drivers.
    """

    def require(condition: bool, text: str) -> None:
        if not condition:
            raise RuntimeError(f"torch.linalg.lstsq: {text}")

    require(a.dim() >= 2, "input must have at least 2 dimensions.")
    require(b.dim() >= 1, "other must have at least 1 dimension.")
    expected = f"got input's dtype {_type_name(a)} and other's dtype {_type_name(b)}"
    require(a.dtype == b.dtype, f"Expected input and other to have the same dtype, but {expected}")
    require(driver in _DRIVERS, f"parameter `driver` should be one of ({', '.join(_DRIVERS)})")
    vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and a.shape[:-1] == b.shape)
    which = -1 if vector else -2
    require(a.shape[-2] == b.shape[which], f"input.size(-2) should match other.size({which})")
    return vector


def _type_name(x: Tensor) -> str:
    return x.type().split(".")[-1].removesuffix("Tensor")
