"""torch's Meta kernels as the oracle for sizes, strides, dtypes and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..base.torch_private import OpOverload, suggest_memory_format
from ..lowerings.registry import LOWERINGS
from .cpu_errors import cpu_error
from .schema import Arguments, Signature, short_name


def to_meta(a: object, keep_numbers: bool = True) -> object:
    """An argument with tensors of the device replaced by meta tensors of the same geometry.

    Args:
        a: the argument.
        keep_numbers: leave zero-dimensional CPU tensors, which act as numbers, unchanged.
    """
    if isinstance(a, torch.Tensor):
        if keep_numbers and _is_number(a):
            return a
        return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
    if isinstance(a, list | tuple):
        return [to_meta(item, keep_numbers) for item in a]
    if isinstance(a, torch.device):
        return torch.device("meta")
    if isinstance(a, torch.Generator):
        return None
    return a


def _is_number(a: object) -> bool:
    return isinstance(a, torch.Tensor) and a.device.type == "cpu" and a.dim() == 0


def call_meta(op: OpOverload, signature: Signature, args: Arguments) -> Any:
    """The result of `op` on meta tensors, or None if torch has no Meta kernel for it.

    Raises:
        Whatever torch raises for these arguments.
    """
    arguments = [to_meta(a) for a in args]
    if "device" in signature.names:
        arguments[signature.names.index("device")] = torch.device("meta")
    try:
        result = _called(op, signature, arguments)
    except NotImplementedError:
        return None
    except Exception as error:
        raised = cpu_error(op, signature, args) or error
        if isinstance(raised, OverflowError):
            # A size that torch's own Python code computes, as in `tril_indices`.
            raised = torch.OutOfMemoryError(f"no memory holds the result of `{short_name(op)}`")
        raise raised from None
    lowering = LOWERINGS.get(short_name(op))
    return _keeping_format(result, arguments) if lowering and lowering.keeps_format else result


def _called(op: OpOverload, signature: Signature, arguments: Sequence[object]) -> Any:
    try:
        return signature.call(op, arguments)
    except RuntimeError:
        if not any(map(_is_number, arguments)):
            raise
    # Some of torch's Meta functions (`copysign`, `floor_divide`) refuse a number on the CPU beside meta tensors.
    return signature.call(op, [to_meta(a, keep_numbers=False) for a in arguments])


def _keeping_format(result: torch.Tensor, arguments: Sequence[object]) -> torch.Tensor:
    """The result as the CPU lays it out: in channels-last format if the image or the weight is."""
    for a in arguments[:2]:
        if isinstance(a, torch.Tensor):
            memory_format = suggest_memory_format(a)
            if memory_format != torch.contiguous_format:
                return result.contiguous(memory_format=memory_format)
    return result
