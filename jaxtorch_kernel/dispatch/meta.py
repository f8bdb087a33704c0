"""torch's Meta kernels as the oracle for sizes, strides, dtypes and errors."""

from __future__ import annotations

from typing import Any

import torch

from .schema import Signature


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
        return op(*positional, **keywords)
    except NotImplementedError:
        return None
    except Exception as error:
        raise cpu_error(op, signature, args) or error from None


def cpu_error(
    op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...]
) -> Exception | None:
    """What the CPU's kernel says of arguments that Meta refuses: many Meta kernels have words of their own."""

    def zeros(a: Any) -> Any:
        if isinstance(a, list | tuple):
            return [zeros(item) for item in a]
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if not isinstance(a, torch.Tensor) or a.device.type == "cpu":
            return a
        return torch.zeros((), dtype=a.dtype).expand(a.shape)

    if any(a is not None and i in signature.written for i, a in enumerate(args)):
        return None
    arguments = [zeros(a) for a in args]
    names = signature.names[signature.positional :]
    keywords = dict(zip(names, arguments[signature.positional :], strict=True))
    try:
        op(*arguments[: signature.positional], **keywords)
    except Exception as error:
        return error
    return None
