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
        meta = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
        return meta
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
