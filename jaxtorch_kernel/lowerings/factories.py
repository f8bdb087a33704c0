"""Factories: tensors created from sizes and numbers, and the `*_like` and `new_*` forms that take a template tensor.

The results' dtypes come from torch's Meta kernels, so that `dtype=None` needs no rules here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from ..base.torch_private import overload
from ..storage.checks import check_index, check_layout
from ..storage.dtypes import to_numpy
from .promote import cast, default_dtype, kind_of, opmath, result_dtype
from .registry import lower
from .types import Array, Function, Operand, Scalar

MODELED: list[str] = []  # factories that take a template tensor
_INT64 = 4  # torch.int64 as the default of a schema


def factory(
    *names: str, static: Iterable[str] = (), random: bool = False
) -> Callable[[Function], Function]:
    """Like `lower`, for operators that take `dtype, layout, device, pin_memory`.

    The function takes a NumPy dtype or None in place of these four. Operators with a template tensor (`zeros_like`,
    `new_zeros`) may be called for another device, and then run there.
    """

    def register(function: Function) -> Function:
        for name in names:
            op = overload(name)
            if op is None:
                continue
            arguments = [a.name for a in op._schema.arguments]
            options = arguments[arguments.index("dtype") :]
            modeled = arguments[0] == "self"
            lower(name, static=static, random=random, modeled=modeled)(_checked(function, options))
            if modeled:
                MODELED.append(name)
        return function

    return register


def _checked(function: Function, options: list[str]) -> Function:
    """A lowering that checks the `options` at the end of its arguments, and passes on the dtype alone."""

    def lowering(*arguments: Any) -> Array:
        values = dict(zip(options, arguments[-len(options) :], strict=True))
        check_layout(values["layout"], values["pin_memory"])
        check_index(values["device"])
        dtype = torch.int64 if values["dtype"] == _INT64 else values["dtype"]
        return function(*arguments[: -len(options)], None if dtype is None else to_numpy(dtype))

    return lowering


# -- one value -------------------------------------------------------------------------------------


@factory("zeros")
def zeros(size: Sequence[int], dtype: np.dtype | None) -> Array:
    return jnp.zeros(size, dtype or default_dtype())


@factory("ones")
def ones(size: Sequence[int], dtype: np.dtype | None) -> Array:
    return jnp.ones(size, dtype or default_dtype())


@factory("full")
def full(size: Sequence[int], fill_value: Scalar, dtype: np.dtype | None) -> Array:
    return jnp.full(size, cast(fill_value, dtype or result_dtype(fill_value)))


@factory("scalar_tensor")
def scalar_tensor(s: Scalar, dtype: np.dtype | None) -> Array:
    return cast(s, dtype or default_dtype())


@factory("zeros_like")
def zeros_like(self: Array, dtype: np.dtype | None) -> Array:
    return jnp.zeros(self.shape, dtype or self.dtype)


@factory("ones_like")
def ones_like(self: Array, dtype: np.dtype | None) -> Array:
    return jnp.ones(self.shape, dtype or self.dtype)


@factory("full_like")
def full_like(self: Array, fill_value: Scalar, dtype: np.dtype | None) -> Array:
    return jnp.full(self.shape, cast(fill_value, dtype or self.dtype))


@factory("new_zeros")
def new_zeros(self: Array, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return jnp.zeros(size, dtype or self.dtype)


@factory("new_ones")
def new_ones(self: Array, size: Sequence[int], dtype: np.dtype | None) -> Array:
    return jnp.ones(size, dtype or self.dtype)


@factory("new_full")
def new_full(self: Array, size: Sequence[int], fill_value: Scalar, dtype: np.dtype | None) -> Array:
    return jnp.full(size, cast(fill_value, dtype or self.dtype))


# -- ranges ----------------------------------------------------------------------------------------


def steps_from(start: Operand, step: Operand, count: int, dtype: np.dtype) -> Array:
    # A step of unsigned integers may be negative.
    wide = np.dtype(np.int64) if kind_of(dtype) == "i" else opmath(dtype)
    return (cast(start, wide) + jnp.arange(count, dtype=wide) * cast(step, wide)).astype(dtype)


@factory("range.step", static=("start", "end", "step"))
def range_step(start: float, end: float, step: float, dtype: np.dtype | None) -> Array:
    return steps_from(start, step, int((end - start) / step) + 1, dtype or default_dtype())


def _between(start: Operand, end: Operand, steps: int, dtype: np.dtype) -> Array:
    """Evenly spaced numbers, each computed from the nearer end as in torch's kernels: exact at both ends, symmetric."""
    start, end = cast(start, dtype), cast(end, dtype)
    if steps == 1:
        return start.reshape(1)
    step = (end - start) / np.array(steps - 1, dtype)
    i = jnp.arange(steps, dtype=np.int32)
    rising = start + step * i.astype(dtype)
    falling = end - step * (steps - 1 - i).astype(dtype)
    return jnp.where(i < steps // 2, rising, falling)


def _spacing_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if kind_of(dtype) in "bi" else opmath(dtype)


ENDS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@factory(*(f"linspace.{v}" for v in ENDS))
def linspace(start: Operand, end: Operand, steps: int, dtype: np.dtype | None) -> Array:
    dtype = result_dtype(start, end, 0.0) if dtype is None else dtype
    # Both ends are rounded to the dtype of the result first.
    return _between(cast(start, dtype), cast(end, dtype), steps, _spacing_dtype(dtype))


@factory(*(f"logspace.{v}" for v in ENDS))
def logspace(
    start: Operand, end: Operand, steps: int, base: Operand, dtype: np.dtype | None
) -> Array:
    dtype = result_dtype(start, end, 0.0) if dtype is None else dtype
    spacing = _spacing_dtype(dtype)
    exponents = _between(cast(start, dtype), cast(end, dtype), steps, spacing)
    return jnp.power(cast(base, spacing), exponents)


# -- patterns --------------------------------------------------------------------------------------


@factory("eye")
def eye(n: int, dtype: np.dtype | None) -> Array:
    return jnp.eye(n, dtype=dtype or default_dtype())


@factory("eye.m")
def eye_m(n: int, m: int, dtype: np.dtype | None) -> Array:
    return jnp.eye(n, m, dtype=dtype or default_dtype())


def _coordinates(mask: Array, count: int) -> Array:
    return jnp.stack(jnp.nonzero(mask, size=count))


@factory("tril_indices")
def tril_indices(row: int, col: int, offset: int, dtype: np.dtype | None) -> Array:
    count = int(np.clip(np.arange(row) + offset + 1, 0, col).sum())
    return _coordinates(jnp.tri(row, col, offset, dtype=bool), count)


@factory("triu_indices")
def triu_indices(row: int, col: int, offset: int, dtype: np.dtype | None) -> Array:
    above = row * col - int(np.clip(np.arange(row) + offset, 0, col).sum())
    return _coordinates(~jnp.tri(row, col, offset - 1, dtype=bool), above)


@factory("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta", static=("beta",))
def kaiser_window(window_length: int, *options: Any) -> Array:
    *given, dtype = options
    periodic, beta = given + [True, 12.0][len(given) :]
    dtype = dtype or default_dtype()
    if window_length == 1:
        return jnp.ones(1, dtype)
    count = window_length + periodic
    wide = opmath(dtype)
    ratio = jnp.arange(count, dtype=wide) * np.array(2 / (count - 1), wide) - np.array(1, wide)
    window = jnp.i0(np.array(beta, wide) * jnp.sqrt(1 - ratio * ratio)) / np.i0(beta).astype(wide)
    return window[:window_length]
