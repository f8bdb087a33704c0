"""Factories that read values of their arguments, take a tensor on another device as an example, or write to `out=`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jax.sharding import SingleDeviceSharding

from ..base.torch_private import OpOverload, overload
from ..dispatch import deferring
from ..dispatch.filling import Budget
from ..dispatch.numbers import Scalar
from ..dispatch.operation import Operation
from ..dispatch.registry import kernel
from ..dispatch.targets import write_out
from ..lowerings.factories import ENDS, MODELED, steps_from
from ..lowerings.registry import Lowering
from ..programs import tracing
from ..storage import placement
from ..storage.dtypes import to_numpy
from ..storage.transfer import to_device
from .choice import operation_of
from .factories import factory_kernel, make_strided

Tensor = torch.Tensor


def _on_any_device(op: OpOverload) -> Callable[..., Tensor]:
    """A factory like `zeros_like`, whose `device=` may be another one."""

    def run(
        self: Tensor, *args: object, device: torch.device | None = None, **kwargs: object
    ) -> Tensor:
        if device is None or device.type == "jax":
            return operation_of(op)(self, *args, device=device, **kwargs)
        example = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=device)
        return op(example, *args, device=device, **kwargs)

    return run


@factory_kernel("empty_permuted")
def empty_permuted(
    size: Sequence[int], physical_layout: Sequence[int], *, dtype: torch.dtype | None = None
) -> Tensor:
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
_budget = Budget()


def _as_operand(x: Scalar) -> Scalar | Tensor:
    """An integer as a run-time operand, so that a start that changes between calls is one program."""
    return torch.scalar_tensor(x, dtype=torch.int64, device="cpu") if type(x) is int and x else x


@factory_kernel("arange.start_step")
def arange(
    start: Scalar, end: Scalar, step: Scalar = 1, *, dtype: torch.dtype | None = None
) -> Tensor:
    """`torch.arange`: only the number of elements and the step shape the program.

    Integers are the same from the CPU: the first calls are transfers (`dispatch/filling.py`).
    """
    expected = torch.arange(start, end, step, dtype=dtype, device="meta")
    if expected.is_complex() or expected.dtype == torch.bool:
        # The Meta kernel accepts dtypes that no other kernel does: the CPU's raises.
        torch.arange(0, dtype=expected.dtype, device="cpu")
    count = expected.shape[0]
    recorded = deferring.recorder is not None and not tracing.depth
    if not (recorded or tracing.active() or expected.is_floating_point()):
        key = count, step, expected.dtype, placement.current()
        if isinstance(key[-1], SingleDeviceSharding) and _budget.is_left(key, expected.nbytes):
            _budget.spend(key, expected.nbytes)
            return to_device(torch.arange(start, end, step, dtype=expected.dtype, device="cpu"))
    return _arange(_as_operand(start), step, count, to_numpy(expected.dtype))


@factory_kernel("arange.start")
def arange_start(start: Scalar, end: Scalar, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.arange(start, end)`."""
    return arange(start, end, 1, dtype=dtype)


@factory_kernel("arange")
def arange_end(end: Scalar, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.arange(end)`."""
    return arange(0, end, 1, dtype=dtype)


def _into(op: OpOverload) -> Callable[..., Tensor]:
    """The `out=` form of a factory. It has no dtype argument, so the schemas do not pair the two."""

    def run(*args: object, out: Tensor, **kwargs: object) -> Tensor:
        return write_out(out, op(*args, dtype=out.dtype, device=out.device, **kwargs))

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
