"""CPU and CUDA tensors in programs of the device: passed in and returned without a copy.

If JAX uses the same memory (its CPU platform for CPU tensors, its GPU platform for CUDA tensors), a tensor is borrowed
through dlpack: the array shares the tensor's memory if it is aligned for XLA (64 bytes, as torch's allocator aligns
it), otherwise it is a copy. Results are returned in the same way. In all other cases both are copies.

JAX assumes that arrays are immutable, but torch's memory is mutable. So a tensor is borrowed again for each run,
borrowed memory is never donated, and `hand_back` waits until the program is done: the caller may then write to the
tensors that it lent. A backward pass reads them again; torch's version counters show whether they were modified in
between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np
import torch

from ..dispatch.read import contiguous_array
from ..storage import placement
from ..storage.buffer import spec_of, wrap_sized
from ..storage.transfer import to_device
from .dlpack import array_over, shares_memory, tensor_over
from .node import Context

Tensor = torch.Tensor


def lend(tensors: Sequence[Tensor], share: bool = True) -> list[Tensor]:
    """Tensors of the device with the values of tensors on other devices; gradients flow back to those.

    Args:
        tensors: of any device but jax.
        share: whether to share memory if that is possible. The caller must wait for the program before it returns.
    """
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return list(_Lend.apply(share, *tensors))
    return [borrowed(t) if share else to_device(t.detach()) for t in tensors]


def hand_back(tensors: Sequence[Tensor], device: torch.device, share: bool = True) -> list[Tensor]:
    """Tensors on `device` with the values of jax tensors; gradients flow back. Waits for the values.

    Args:
        tensors: of the jax device.
        device: where they go, without a copy if JAX runs there.
        share: whether gradients are borrowed without a copy.
    """
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return list(_HandBack.apply(share, device, *tensors))
    return [returned(t, device) for t in tensors]


def borrowed(tensor: Tensor) -> Tensor:
    """A tensor of the device over the memory of another tensor, or over a copy if that is not possible."""
    sharding = placement.current()
    if tensor.layout != torch.strided or not shares_memory(sharding, tensor.device):
        return to_device(tensor.cpu())
    plain = tensor.detach().resolve_conj().resolve_neg()
    strides = plain.stride()
    order = sorted(range(plain.dim()), key=lambda d: -strides[d])
    memory = plain.permute(order)  # buffers hold memory order
    if not memory.is_contiguous():
        memory = plain = plain.contiguous()
    array = array_over(memory)
    if array.sharding != sharding:
        with jax.enable_x64(True):
            array = jax.device_put(array, sharding)
    spec = spec_of(np.dtype(array.dtype), tuple(array.shape), sharding)
    return wrap_sized(array, spec, plain.shape, plain.dtype, plain.stride())


def returned(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on `device` over the array of a jax tensor, or over a copy if that is not possible."""
    array = contiguous_array(tensor)
    if not shares_memory(array.sharding, device):
        return tensor.detach().to(device)
    return tensor_over(array)


class _Context(Context, Protocol):
    """The node of a copy: whether memory is shared, and the device of the inputs."""

    share: bool
    device: torch.device


class _Lend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, share: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.share, ctx.device = share, tensors[0].device
        if share:
            ctx.save_for_backward(*tensors)
        lent = tuple(borrowed(t) if share else to_device(t) for t in tensors)
        pairs = zip(lent, tensors, strict=True)
        ctx.mark_non_differentiable(*(new for new, t in pairs if not t.requires_grad))
        ctx.set_materialize_grads(False)
        return lent

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.saved_tensors  # noqa: B018  # torch raises if one was modified since it was lent
        given = [g for g in gradients if g is not None]
        back = iter(hand_back(given, ctx.device, ctx.share))
        return (None, *(None if g is None else next(back) for g in gradients))


class _HandBack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, share: bool, device: torch.device, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.share = share
        ctx.set_materialize_grads(False)
        back = tuple(returned(t, device) for t in tensors)
        pairs = zip(back, tensors, strict=True)
        ctx.mark_non_differentiable(*(new for new, t in pairs if not t.requires_grad))
        return back

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        lent = iter(lend([g for g in gradients if g is not None], ctx.share))
        return (None, None, *(None if g is None else next(lent) for g in gradients))
