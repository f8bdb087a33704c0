"""Checks that results fit their targets (`out=` tensors and in-place targets), with torch's own error messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..programs.site import warn
from ..storage.dtypes import row_of
from .results import flatten

Tensor = torch.Tensor
Type = tuple[tuple[int, ...], torch.dtype]  # size and dtype of a result


def check_in_place(metas: object, targets: Sequence[object]) -> None:
    """Refuse an in-place operator whose result has another size than the target, or a dtype of a higher category.

    Raises:
        RuntimeError: torch's own.
    """
    results = [m for m in flatten(metas) if isinstance(m, Tensor)]
    for meta, target in zip(results, flatten(targets), strict=False):
        if meta.shape != target.shape:
            raise RuntimeError(
                f"output with shape {list(target.shape)} doesn't match the broadcast shape "
                f"{list(meta.shape)}"
            )
        _check_cast(meta.dtype, target.dtype)


def check_devices(outs: Sequence[Tensor | None], name: str) -> None:
    """Refuse an `out=` on another device."""
    if any(o is None or o.device.type != "jax" for o in outs):
        devices = ", ".join(str(o.device) for o in outs if o is not None)
        raise RuntimeError(
            f"Expected all tensors to be on the same device: out is on {devices}, "
            f"the inputs of {name} on jax:0."
        )


def resize(outs: Sequence[Tensor], types: Sequence[Type]) -> bool:
    """Resize `out=` tensors to the results, as torch does; True if one changed.

    Raises:
        RuntimeError: the result's dtype is of a higher category than the tensor's.
    """
    changed = False
    for out, (size, dtype) in zip(outs, types, strict=True):
        _check_cast(dtype, out.dtype)
        if tuple(out.shape) != size:
            if out.numel():
                _warn_resize(out.shape, size)
            out.resize_(size)
            changed = True
    return changed


def _check_cast(dtype: torch.dtype, target: torch.dtype) -> None:
    if not torch.can_cast(dtype, target):
        raise RuntimeError(
            f"result type {type_name(dtype)} can't be cast to the desired output type "
            f"{type_name(target)}"
        )


def type_name(dtype: torch.dtype) -> str:
    row = row_of(dtype)
    return str(dtype) if row is None else row.name


def _warn_resize(old: Sequence[int], new: Sequence[int]) -> None:
    warn(
        f"An output with one or more elements was resized since it had shape {list(old)}, which does not "
        f"match the required output shape {list(new)}. This behavior is deprecated, and in a future "
        "PyTorch release outputs will not be resized unless they have zero elements. You can explicitly "
        "reuse an out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
    )


def write_out(out: Tensor, result: Tensor) -> Tensor:
    """Copy a result into an `out=` tensor, which is resized to fit; returns the tensor."""
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)
