"""Factories: tensors created from sizes and numbers, and the `*_like` and `new_*` forms that take a template tensor.

The results' dtypes come from torch's Meta kernels, so that `dtype=None` needs no rules here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..base.torch_private import overload
from ..storage.checks import check_index, check_layout
from ..storage.dtypes import to_numpy
from .promote import cast, default_dtype, kind_of, opmath, result_dtype
from .registry import lower

Tensor = torch.Tensor
Function = Callable[..., Any]

MODELED: list[str] = []  # factories that take a tensor as their model
_INT64 = 4  # how a schema's default spells torch.int64


def factory(*names: str, **options: Any) -> Callable[[Function], Function]:
    """As `lower`, for operators that take `dtype, layout, device, pin_memory`: the function gets a NumPy dtype or None.

    Operators with a tensor (`zeros_like`, `new_zeros`) may name another device; they are run there.
    """

    def register(function: Function) -> Function:
        for name in names:
            op = overload(name)
            if op is None:
                continue
            arguments = [a.name for a in op._schema.arguments]
            lower(name, **options)(_checked(function, arguments[arguments.index("dtype") :]))
            if arguments[0] == "self":
                MODELED.append(name)
        return function

    return register


def _checked(function: Function, trailing: list[str]) -> Function:
    """The function with its trailing factory arguments checked and left out, all but the dtype."""

    def lowering(*arguments: Any) -> Any:
        own, rest = arguments[: -len(trailing)], arguments[-len(trailing) :]
        given = dict(zip(trailing, rest, strict=True))
        check_layout(given["layout"], given["pin_memory"])
        check_index(given["device"])
        dtype = given["dtype"]
        if dtype == _INT64:
            dtype = torch.int64
        return function(*own, None if dtype is None else to_numpy(dtype))

    return lowering


# -- one value ------------------------------------------------------------------------------------------------------


@factory("zeros")
def zeros(size: Any, dtype: Any) -> jax.Array:
    return jnp.zeros(size, dtype or default_dtype())


@factory("ones")
def ones(size: Any, dtype: Any) -> jax.Array:
    return jnp.ones(size, dtype or default_dtype())


@factory("full")
def full(size: Any, fill_value: Any, dtype: Any) -> jax.Array:
    return jnp.full(size, cast(fill_value, dtype or result_dtype(fill_value)))


@factory("scalar_tensor")
def scalar_tensor(s: Any, dtype: Any) -> jax.Array:
    return cast(s, dtype or default_dtype())


@factory("zeros_like")
def zeros_like(self: Any, dtype: Any) -> jax.Array:
    return jnp.zeros(self.shape, dtype or self.dtype)


@factory("ones_like")
def ones_like(self: Any, dtype: Any) -> jax.Array:
    return jnp.ones(self.shape, dtype or self.dtype)


@factory("full_like")
def full_like(self: Any, fill_value: Any, dtype: Any) -> jax.Array:
    return jnp.full(self.shape, cast(fill_value, dtype or self.dtype))


@factory("new_zeros")
def new_zeros(self: Any, size: Any, dtype: Any) -> jax.Array:
    return jnp.zeros(size, dtype or self.dtype)


@factory("new_ones")
def new_ones(self: Any, size: Any, dtype: Any) -> jax.Array:
    return jnp.ones(size, dtype or self.dtype)


@factory("new_full")
def new_full(self: Any, size: Any, fill_value: Any, dtype: Any) -> jax.Array:
    return jnp.full(size, cast(fill_value, dtype or self.dtype))


# -- ranges ---------------------------------------------------------------------------------------------------------


def steps_from(start: Any, step: Any, count: int, dtype: np.dtype) -> jax.Array:
    wide = opmath(dtype)
    return (cast(start, wide) + jnp.arange(count, dtype=wide) * cast(step, wide)).astype(dtype)


@factory("range.step", static=("start", "end", "step"))
def range_step(start: Any, end: Any, step: Any, dtype: Any) -> jax.Array:
    return steps_from(start, step, int((end - start) / step) + 1, dtype or default_dtype())


def _between(start: Any, end: Any, steps: int, dtype: np.dtype) -> jax.Array:
    """Evenly spaced from both ends inwards, as torch's kernels do: exact at either end, and symmetric."""
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
def linspace(start: Any, end: Any, steps: int, dtype: Any) -> jax.Array:
    dtype = dtype or result_dtype(start, end, 0.0)
    return _between(_in(start, dtype), _in(end, dtype), steps, _spacing_dtype(dtype))


@factory(*(f"logspace.{v}" for v in ENDS))
def logspace(start: Any, end: Any, steps: int, base: Any, dtype: Any) -> jax.Array:
    dtype = dtype or result_dtype(start, end, 0.0)
    spacing = _spacing_dtype(dtype)
    exponents = _between(_in(start, dtype), _in(end, dtype), steps, spacing)
    return jnp.power(cast(base, spacing), exponents)


def _in(x: Any, dtype: np.dtype) -> jax.Array:
    """An end of the range, rounded to the result's dtype first."""
    return cast(x, dtype)


# -- patterns -------------------------------------------------------------------------------------------------------


@factory("eye")
def eye(n: int, dtype: Any) -> jax.Array:
    return jnp.eye(n, dtype=dtype or default_dtype())


@factory("eye.m")
def eye_m(n: int, m: int, dtype: Any) -> jax.Array:
    return jnp.eye(n, m, dtype=dtype or default_dtype())


def _coordinates(mask: jax.Array, count: int) -> jax.Array:
    return jnp.stack(jnp.nonzero(mask, size=count))


@factory("tril_indices")
def tril_indices(row: int, col: int, offset: int, dtype: Any) -> jax.Array:
    count = int(np.clip(np.arange(row) + offset + 1, 0, col).sum())
    return _coordinates(jnp.tri(row, col, offset, dtype=bool), count)


@factory("triu_indices")
def triu_indices(row: int, col: int, offset: int, dtype: Any) -> jax.Array:
    above = row * col - int(np.clip(np.arange(row) + offset, 0, col).sum())
    return _coordinates(~jnp.tri(row, col, offset - 1, dtype=bool), above)


@factory("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta", static=("beta",))
def kaiser_window(window_length: int, *rest: Any) -> jax.Array:
    *shape, dtype = rest
    periodic, beta = shape + [True, 12.0][len(shape) :]
    dtype = dtype or default_dtype()
    if window_length == 1:
        return jnp.ones(1, dtype)
    count = window_length + periodic
    wide = opmath(dtype)
    ratio = jnp.arange(count, dtype=wide) * np.array(2 / (count - 1), wide) - np.array(1, wide)
    window = jnp.i0(np.array(beta, wide) * jnp.sqrt(1 - ratio * ratio)) / np.i0(beta).astype(wide)
    return window[:window_length]


# -- `out=` ---------------------------------------------------------------------------------------
