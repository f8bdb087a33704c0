"""Aliases of tensors by torch's private hooks: the kernels of view operators, and aliases of a given geometry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey

from .torch_hooks import HOOKS
from .torch_private import OpOverload

Ints = Sequence[int]
Kernel = Callable[..., Any]

_META = DispatchKey.Meta
_COMPOSITES = (
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeExplicitAutogradNonFunctional,
)
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_as_strided = HOOKS.find("torch.ops.aten.as_strided.default._op_dk")
# (tensor, size, stride, increment of the offset) -> an alias; None if this torch lacks it. It takes tuples.
reinterpret: Any = HOOKS.find("torch._C._dynamo.guards._reinterpret_tensor")
inference_mode = torch.is_inference_mode_enabled


@functools.cache
def view_kernel(op: OpOverload) -> Kernel:
    """torch's kernel of a view operator, for tensors of the device.

    The kernel uses only size, stride and offset. The result is a true alias: it shares the Storage and everything that
    is attached to the Storage.
    """
    name = op._schema.name + (f".{op._overloadname}" if op._overloadname != "default" else "")
    composite = not _has_kernel(name, "Meta") and _has_kernel(name, "CompositeExplicitAutograd")
    key = DispatchKey.CompositeExplicitAutograd if composite else _META
    return functools.partial(op._op_dk, key)


def composite_kernel(op: OpOverload) -> Kernel:
    """torch's kernel of an operator for all devices, where this device has another."""
    key = next(key for key in _COMPOSITES if _has_kernel(op._schema.name, key.name))
    return functools.partial(op._op_dk, key)


def as_strided(
    tensor: torch.Tensor, size: Ints, stride: Ints, offset: int | torch.SymInt = 0
) -> torch.Tensor:
    """A true alias of `tensor`'s Storage with this geometry (elements, not bytes)."""
    return _as_strided(_META, tensor, size, stride, offset)


def alias_at(
    tensor: torch.Tensor, size: Ints, stride: Ints, increment: int | torch.SymInt
) -> torch.Tensor:
    """As `as_strided`, for a geometry that is known to be valid; `increment` is added to the tensor's offset."""
    # Below the dispatcher, torch makes an inference tensor in inference mode and a normal one outside of it, whereas a
    # view has to be of the kind of its base.
    if reinterpret is None or tensor.is_inference() is not inference_mode():
        return _as_strided(_META, tensor, size, stride, tensor.storage_offset() + increment)
    # torch 2.15 refuses a list and a torch.Size.
    if type(size) is not tuple:
        size = tuple(size)
    if type(stride) is not tuple:
        stride = tuple(stride)
    return reinterpret(tensor, size, stride, increment)
