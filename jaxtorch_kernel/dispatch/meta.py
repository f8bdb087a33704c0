"""torch's Meta kernels as the oracle for sizes, strides, dtypes and errors."""

from __future__ import annotations

from typing import Any

import torch

from .._torch_private import suggest_memory_format
from ..lowerings.promote import kind_of
from ..lowerings.refused import REFUSED
from ..lowerings.registry import LOWERINGS
from ..storage.dtypes import to_numpy
from .schema import Signature, short_name

# Up to here the CPU is asked with zeros in memory, beyond with one zero for all: some kernels want dense tensors.
_MOST_ZEROS = 1 << 20


def check_dtypes(op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...]) -> None:
    """Raise the CPU's error for an operand of a dtype that torch has no kernel for (`lowerings/refused.py`)."""
    asked = REFUSED.get(op._schema.name.removeprefix("aten::"))
    if asked is None:
        return
    kinds = [kind_of(to_numpy(a.dtype)) for a in args if isinstance(a, torch.Tensor)]
    # Later operands may be indices, which are integers rightly.
    if kinds and (kinds[0] in asked or ("c" in kinds and "c" in asked)):
        error = cpu_error(op, signature, args)
        if error is not None:
            raise error


def to_meta(a: Any) -> Any:
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


def call_meta(op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...]) -> Any:
    """What `op` returns on meta tensors, or None where torch has no Meta kernel for it.

    Raises:
        Whatever torch raises for these arguments.
    """
    arguments = [to_meta(a) for a in args]
    positional = arguments[: signature.positional]
    keywords = dict(
        zip(signature.names[signature.positional :], arguments[signature.positional :], strict=True)
    )
    if "device" in signature.names:
        keywords["device"] = torch.device("meta")
    try:
        result = op(*positional, **keywords)
    except NotImplementedError:
        return None
    except Exception as error:
        raise cpu_error(op, signature, args) or error from None
    lowering = LOWERINGS.get(short_name(op))
    return _keeping_format(result, positional) if lowering and lowering.keeps_format else result


def _keeping_format(result: torch.Tensor, arguments: list[Any]) -> torch.Tensor:
    """The result as the CPU lays it out: channels last where the image or the weight is."""
    for a in arguments[:2]:
        if isinstance(a, torch.Tensor):
            memory_format = suggest_memory_format(a)
            if memory_format != torch.contiguous_format:
                return result.contiguous(memory_format=memory_format)
    return result


def cpu_error(
    op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...]
) -> Exception | None:
    """What the CPU's kernel says of arguments that Meta refuses: many Meta kernels have words of their own."""

    def zeros(a: Any, written: bool = False) -> Any:
        if isinstance(a, list | tuple):
            return [zeros(item, written) for item in a]
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if not isinstance(a, torch.Tensor) or a.device.type == "cpu":
            return a
        if written or a.numel() <= _MOST_ZEROS:
            return torch.zeros(a.shape, dtype=a.dtype)
        return torch.zeros((), dtype=a.dtype).expand(a.shape)

    arguments = [zeros(a, i in signature.written) for i, a in enumerate(args)]
    names = signature.names[signature.positional :]
    keywords = dict(zip(names, arguments[signature.positional :], strict=True))
    try:
        op(*arguments[: signature.positional], **keywords)
    except Exception as error:
        return error
    return None
