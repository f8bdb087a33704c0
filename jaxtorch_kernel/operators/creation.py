"""Factories that read their arguments, take a template tensor on another device, or write to `out=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..base.torch_private import overload
from ..dispatch.operation import Operation
from ..dispatch.registry import kernel
from ..lowerings.factories import ENDS, MODELED, steps_from
from ..lowerings.registry import Lowering
from ..storage.dtypes import to_numpy
from .choice import operation_of
from .factories import factory_kernel, make_strided

Tensor = torch.Tensor


def _on_any_device(op: torch._ops.OpOverload) -> Callable[..., Any]:
    def run(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or device.type == "jax":
            return operation_of(op)(self, *args, **kwargs)
        geometry = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=device)
        return op(geometry, *args, **kwargs)

    return run


@factory_kernel("empty_permuted")
def empty_permuted(size: Any, physical_layout: Any, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.empty_permuted`: dense, with its dimensions in the given memory order."""
    if sorted(physical_layout) != list(range(len(size))):
        raise RuntimeError(
            f"empty_permuted: {list(physical_layout)} is not a permutation of {len(size)} dimensions"
        )
    strides, step = [0] * len(size), 1
    for d in reversed(physical_layout):
        strides[d] = step
        step *= max(size[d], 1)
    return make_strided(size, strides, dtype or torch.get_default_dtype())


_arange = Operation(None, Lowering(steps_from), name="arange")


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


def _into(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The `out=` form of a factory: it has no dtype argument, so the schemas do not pair the two."""

    def run(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        result = op(*args, dtype=out.dtype, device=out.device, **kwargs)
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return run


for _name in ("linspace", "logspace"):
    for _ends in ENDS:
        _out = "out" if _ends == "default" else f"{_ends}_out"
        if (_op := overload(f"{_name}.{_ends}")) is not None:
            kernel(f"{_name}.{_out}")(_into(_op))


for _name, _functional in (
    ("arange.start_out", "arange.start_step"),
    ("range.out", "range.step"),
    ("eye.out", "eye"),
    ("eye.m_out", "eye.m"),
    ("randperm.out", "randperm"),
    ("randperm.generator_out", "randperm.generator"),
):
    if (_op := overload(_functional)) is not None:
        kernel(_name)(_into(_op))

for _name in MODELED:
    if (_op := overload(_name)) is not None:
        kernel(_name)(_on_any_device(_op))
