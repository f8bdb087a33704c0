"""torch's Meta kernels as the oracle for sizes, strides, dtypes and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..base.torch_private import OpOverload, suggest_memory_format
from ..lowerings.registry import LOWERINGS
from .cpu_errors import cpu_error
from .schema import Arguments, Signature, short_name


def to_meta(a: object) -> object:
    """An argument with tensors of the device replaced by meta tensors of the same geometry."""
    if isinstance(a, torch.Tensor):
        if a.device.type == "cpu" and a.dim() == 0:
            return a
        return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
    if isinstance(a, list | tuple):
        return [to_meta(item) for item in a]
    if isinstance(a, torch.device):
        return torch.device("meta")
    if isinstance(a, torch.Generator):
        return None
    return a


def call_meta(op: OpOverload, signature: Signature, args: Arguments) -> Any:
    """The result of `op` on meta tensors, or None if torch has no Meta kernel for it.

    Raises:
        Whatever torch raises for these arguments.
    """
    arguments = [to_meta(a) for a in args]
    if "device" in signature.names:
        arguments[signature.names.index("device")] = torch.device("meta")
    try:
        result = signature.call(op, arguments)
    except NotImplementedError:
        return None
    except Exception as error:
        raise cpu_error(op, signature, args) or error from None
    lowering = LOWERINGS.get(short_name(op))
    return _keeping_format(result, arguments) if lowering and lowering.keeps_format else result


def _keeping_format(result: torch.Tensor, arguments: Sequence[object]) -> torch.Tensor:
    """The result as the CPU lays it out: in channels-last format if the image or the weight is."""
    for a in arguments[:2]:
        if isinstance(a, torch.Tensor):
            memory_format = suggest_memory_format(a)
            if memory_format != torch.contiguous_format:
                return result.contiguous(memory_format=memory_format)
    return result
