"""Factories: tensors made of sizes and numbers, and the `*_like` and `new_*` forms that take them from a tensor.

The results' dtypes come from torch's Meta kernels, so that `dtype=None` needs no rules here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..dispatch.operation import Operation, operation_of
from ..dispatch.registry import kernel
from ..operators.factories import check_index, check_layout, factory_kernel, make_strided
from ..storage.dtypes import to_numpy
from .promote import cast, default_dtype, kind_of, opmath, result_dtype
from .registry import Lowering, lower

Tensor = torch.Tensor
Function = Callable[..., Any]

_INT64 = 4  # how a schema's default spells torch.int64


def overload(name: str) -> torch._ops.OpOverload:
    """The operator that the table of lowerings calls `name`."""
    base, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), variant or "default")


def factory(*names: str, **options: Any) -> Callable[[Function], Function]:
    """As `lower`, for operators that take `dtype, layout, device, pin_memory`: the function gets a NumPy dtype or None.

    Operators with a tensor (`zeros_like`, `new_zeros`) may name another device; they are run there.
    """

    def register(function: Function) -> Function:
        for name in names:
            op = overload(name)
            arguments = [a.name for a in op._schema.arguments]
            lower(name, **options)(_checked(function, arguments[arguments.index("dtype") :]))
            if arguments[0] == "self":
                kernel(name)(_on_any_device(op))
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


def _on_any_device(op: torch._ops.OpOverload) -> Function:
    def run(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or device.type == "jax":
            return operation_of(op)(self, *args, **kwargs)
        geometry = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=device)
        return op(geometry, *args, **kwargs)

    return run


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


@factory_kernel("empty_permuted")
def empty_permuted(size: Any, physical_layout: Any, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.empty_permuted`: dense, its dimensions in memory in the order given."""
    if sorted(physical_layout) != list(range(len(size))):
        raise RuntimeError(
            f"empty_permuted: {list(physical_layout)} is no permutation of {len(size)} dimensions"
        )
    strides, step = [0] * len(size), 1
    for d in reversed(physical_layout):
        strides[d] = step
        step *= max(size[d], 1)
    return make_strided(size, strides, dtype or torch.get_default_dtype())


# -- ranges ---------------------------------------------------------------------------------------------------------


def _steps(start: Any, step: Any, count: int, dtype: np.dtype) -> jax.Array:
    wide = opmath(dtype)
    return (cast(start, wide) + jnp.arange(count, dtype=wide) * cast(step, wide)).astype(dtype)


_arange = Operation(None, Lowering(_steps), "arange")


def _run_time(x: Any) -> Any:
    """An integer as an operand: a position that moves from call to call is one program."""
    return torch.scalar_tensor(x, dtype=torch.int64, device="cpu") if type(x) is int and x else x


@factory_kernel("arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.arange`: only the number of elements and the step shape the program."""
    expected = torch.arange(start, end, step, dtype=dtype, device="meta")
    if expected.is_complex() or expected.dtype == torch.bool:
        # Meta lets pass what no kernel does: this raises.
        torch.arange(0, dtype=expected.dtype, device="cpu")
    count = expected.shape[0]
    return _arange(_run_time(start), step, count, to_numpy(expected.dtype))


@factory_kernel("arange.start")
def arange_start(start: Any, end: Any, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.arange(start, end)`."""
    return arange(start, end, 1, dtype=dtype)


@factory_kernel("arange")
def arange_end(end: Any, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.arange(end)`."""
    return arange(0, end, 1, dtype=dtype)


@factory("range.step", static=("start", "end", "step"))
def range_step(start: Any, end: Any, step: Any, dtype: Any) -> jax.Array:
    return _steps(start, step, int((end - start) / step) + 1, dtype or default_dtype())


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


_ENDS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@factory(*(f"linspace.{v}" for v in _ENDS))
def linspace(start: Any, end: Any, steps: int, dtype: Any) -> jax.Array:
    dtype = dtype or result_dtype(start, end, 0.0)
    return _between(_in(start, dtype), _in(end, dtype), steps, _spacing_dtype(dtype))


@factory(*(f"logspace.{v}" for v in _ENDS))
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


def _into(op: torch._ops.OpOverload) -> Function:
    """The `out=` form of a factory: it takes no dtype of its own, so that no schema pairs the two."""

    def run(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        result = op(*args, dtype=out.dtype, device=out.device, **kwargs)
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return run


for _name in ("linspace", "logspace"):
    for _ends in _ENDS:
        _out = "out" if _ends == "default" else f"{_ends}_out"
        kernel(f"{_name}.{_out}")(_into(overload(f"{_name}.{_ends}")))
for _name, _functional in (
    ("arange.start_out", "arange.start_step"),
    ("range.out", "range.step"),
    ("eye.out", "eye"),
    ("eye.m_out", "eye.m"),
    ("randperm.out", "randperm"),
    ("randperm.generator_out", "randperm.generator"),
):
    kernel(_name)(_into(overload(_functional)))
