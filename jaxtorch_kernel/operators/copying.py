"""Copies between devices, between dtypes, and of one element to Python."""

from __future__ import annotations

import torch

from ..base import torch_private as private
from ..dispatch.numbers import Scalar
from ..dispatch.operation import Operation
from ..dispatch.read import host_array
from ..dispatch.registry import kernel
from ..lowerings import promote
from ..lowerings.registry import Lowering
from ..programs import tracing
from ..programs.site import origin
from ..storage.buffer import buffer_of
from ..storage.checks import check_index
from ..storage.dtypes import to_numpy
from ..storage.layout import memory_order
from ..storage.transfer import to_device, to_host
from .choice import operation_of

Tensor = torch.Tensor


def _resolved(x: Tensor) -> Tensor:
    """The tensor without lazy conjugation and negation, which torch resolves only for other kernels than these."""
    if x.is_conj():
        x = torch.conj_physical(x.conj())
    if x.is_neg():
        x = torch.neg(private.neg_view(x))
    return x


class _Transfer:
    """The origin of a tensor that was copied to the device."""

    name = "to"


_TRANSFER = _Transfer()


_cast_to = Operation(None, Lowering(promote.cast), name="_to_copy")


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy of a device tensor in another dtype."""
    return _cast_to(x, to_numpy(dtype))


def to_cpu(x: Tensor) -> Tensor:
    """A CPU copy, with the same strides if those are dense. Waits for the values."""
    array = host_array(_resolved(x))
    dense = memory_order(tuple(x.shape), x.stride()) is not None
    return to_host(array, x.stride() if dense else None)


@kernel("_to_copy")
def to_copy(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """`Tensor.to`: to, from and on the device."""
    if torch.nn.parameter.is_lazy(self):
        with private.without_torch_function():
            self = self.as_subclass(Tensor)  # a lazy parameter raises when its shape is read
    target = self.device if device is None else device
    if target.type == "jax":
        check_index(target)
    dtype = self.dtype if dtype is None else dtype
    if target.type == "meta":
        return torch.empty_strided(self.shape, self.stride(), dtype=dtype, device="meta")
    if target.type not in ("jax", "cpu"):
        return to_cpu(self).to(device=target, dtype=dtype, non_blocking=non_blocking)
    if target.type == "cpu":
        source = cast(_resolved(self), dtype) if dtype != self.dtype else self
        result = to_cpu(source)
    elif self.device.type == "jax":
        result = cast(_resolved(self), dtype)
    else:
        preserves = memory_format in (None, torch.preserve_format)
        result = to_device(self.to(dtype) if dtype != self.dtype else self, in_order=preserves)
        buffer_of(result).origin = origin(_TRANSFER)
        if tracing.depth and (trace := tracing.current()) is not None:
            trace.add_created(buffer_of(result))
    if memory_format is None or memory_format == torch.preserve_format:
        order = memory_order(tuple(self.shape), self.stride())
        if order is not None and result.stride() != self.stride():
            strided = torch.empty_strided(self.shape, self.stride(), dtype=dtype, device=target)
            return strided.copy_(result)
        return result
    if memory_format == torch.contiguous_format:
        return result
    return result.contiguous(memory_format=memory_format)


@kernel("copy_")
def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """`self.copy_(src)`, each on any device."""
    if self is src:
        return self
    if not isinstance(src, Tensor):  # torch passes a Python number unchanged
        src = torch.tensor(src)
    if self.device.type != "jax":
        self.copy_(to_cpu(src))
        return self
    if src.device.type != "jax":
        if src.dim() and src.device.type != "cpu":
            src = src.cpu()
        src = to_device(src.to(self.dtype))
    else:
        src = _resolved(src)
    if self.is_conj():
        copy_physical(self.conj(), torch.conj_physical(src))
    elif self.is_neg():
        copy_physical(private.neg_view(self), torch.neg(src))
    else:
        copy_physical(self, src)
    return self


def copy_physical(self: Tensor, src: Tensor) -> None:
    """Write `src`, broadcast and cast, into `self`, both on the device and not lazily conjugated or negated."""
    operation_of(torch.ops.aten.copy_.default)(self, src)


@kernel("_copy_from")
def copy_from(self: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """`copy_` with the arguments in reverse order, as torch's C++ calls it."""
    copy_(dst, self)
    return dst


@kernel("_local_scalar_dense")
def local_scalar_dense(self: Tensor) -> Scalar:
    """`.item()`. Waits for the value."""
    return host_array(self, "read as a Python number").reshape(()).item()
