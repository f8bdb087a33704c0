"""The sharding of tensors: reading it, copying to another one, and changing it in place.

In place, a tensor stays the same object with the same gradient, hooks and aliases: the array in its buffer is replaced,
and all aliases share the buffer. A tensor that is a view of a part of its buffer, or is on the CPU, gets new memory
instead (`tensor.data = ...`), which keeps the object too.
"""

from __future__ import annotations

import jax
import torch
from jax.sharding import Sharding
from torch.autograd.function import FunctionCtx

from ..base.torch_private import is_wrapped
from ..dispatch.read import contiguous_array
from ..programs import tracing, untraceable
from ..programs.trees import is_device_tensor
from ..storage import placement
from ..storage.buffer import buffer_of, spec_of, wrap_sized
from ..storage.layout import is_array
from ..storage.transfer import as_numpy
from . import meshes

Tensor = torch.Tensor


def sharding_of(x: Tensor) -> Sharding:
    """The sharding of a tensor.

    Args:
        x: a tensor on the jax device, of any shape and dtype.

    Returns:
        JAX's own object: a `NamedSharding`, or a `SingleDeviceSharding`. The types of a mesh's axes are Auto.

    Raises:
        TypeError: x is not a tensor on the jax device.
        RuntimeError: in captured code, where XLA decides it after the trace.

    Example:
        >>> import torch, jaxtorch
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jaxtorch.shard(torch.zeros(4, 2), P("data"), jaxtorch.mesh(1, "data"))
        >>> jaxtorch.sharding_of(x).spec
        P('data',)
    """
    if not is_device_tensor(x):
        where = f"a tensor on {x.device}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"only a tensor on the jax device has a sharding, not {where}")
    array = contiguous_array(x)
    if isinstance(array, jax.core.Tracer):
        raise untraceable.Untraceable(
            "the sharding of a tensor in captured code is not known: XLA chooses it when it compiles the program"
        )
    return array.sharding


def check_dense(x: Tensor, what: str) -> None:
    """Check that a tensor has an array.

    Raises:
        TypeError: it is sparse, quantized, nested, on the meta device, or inside a transform of `torch.func`.
    """
    if is_wrapped(x):
        raise TypeError(
            f"{what} is inside torch.vmap or torch.func.grad, where it has no array: shard it outside"
        )
    if x.device.type == "meta":
        raise TypeError(
            f"{what} is on the meta device: give it values first, module.to_empty(device='jax')"
        )
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        kind = "quantized" if x.is_quantized else "nested" if x.is_nested else x.layout
        raise TypeError(
            f"{what} is {kind}, and XLA has only dense arrays: call .to_dense() or .dequantize() first"
        )


def array_on(x: Tensor, where: Sharding) -> jax.Array:
    """The values of a tensor on the CPU or the device, as an array with a sharding."""
    on_device = x.device.type == "jax"
    values = contiguous_array(x) if on_device else as_numpy(x.detach().cpu())
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return placement.moved(values, where)


def tensor_over(array: jax.Array, dtype: torch.dtype) -> Tensor:
    """A new tensor of the device over an array."""
    torch.jax.init()  # type: ignore[attr-defined]  # the device may not have been used before
    shape = tuple(array.shape)
    return wrap_sized(array, spec_of(array.dtype, shape, array.sharding), shape, dtype)


def has_sharding(x: Tensor, where: Sharding) -> bool:
    """Whether a tensor already has this sharding."""
    if x.device.type != "jax" or not is_array(x):
        return False
    return buffer_of(x).spec.placement == placement.propagated(where)


def mesh_of(x: object) -> jax.sharding.Mesh | None:
    """The mesh of a tensor; None if the tensor is on a single device."""
    if not is_device_tensor(x):
        return None
    where = buffer_of(x).spec.placement
    if not isinstance(where, jax.sharding.NamedSharding):
        return None
    return meshes.concrete(where.mesh, "a tensor")


def spec_on(x: Tensor, mesh: jax.sharding.Mesh) -> tuple[object, ...]:
    """The axes of a mesh along each dimension of a tensor; empty if the tensor is not on this mesh."""
    if mesh_of(x) is None:
        return ()
    where = contiguous_array(x).sharding
    if not isinstance(where, jax.sharding.NamedSharding) or where.mesh != meshes.auto(mesh):
        return ()
    return tuple(where.spec)


class _Move(torch.autograd.Function):
    """A copy with another sharding; its gradient gets the original's sharding."""

    generate_vmap_rule = True  # torch.vmap asks for one, though batches are refused before

    @staticmethod
    def forward(x: Tensor, where: Sharding, back: Sharding | torch.device) -> Tensor:
        return tensor_over(array_on(x, where), x.dtype)

    @staticmethod
    def setup_context(
        ctx: FunctionCtx,
        inputs: tuple[Tensor, Sharding, Sharding | torch.device],
        output: Tensor,
    ) -> None:
        # In torch.func.grad the tensor is wrapped here, and has no array: its sharding comes with it.
        _, _, ctx.back = inputs  # type: ignore[attr-defined]  # set here, as torch documents

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        back: Sharding | torch.device = ctx.back  # type: ignore[attr-defined]  # set above
        if isinstance(back, torch.device):
            return gradient.to(back), None, None
        return moved(gradient, back), None, None


def moved(x: Tensor, where: Sharding) -> Tensor:
    """x copied to a sharding, or x itself if it has it already. Gradients flow through it."""
    if has_sharding(x, where):
        return x
    back = contiguous_array(x).sharding if is_device_tensor(x) else x.device
    result: Tensor = _Move.apply(x, where, back)
    return result


def set_sharding(x: Tensor, where: Sharding) -> None:
    """Change the sharding of a tensor and of its gradient, in place."""
    gradient = x.grad
    if not has_sharding(x, where):
        array = array_on(x, where)
        if x.device.type == "jax" and is_array(x):
            buffer = buffer_of(x)
            buffer.write(array, spec_of(array.dtype, tuple(array.shape), array.sharding))
        else:
            x.data = tensor_over(array, x.dtype)
    if gradient is not None and gradient.layout == torch.strided:
        set_sharding(gradient, where)


def shard_gradients(parameter: Tensor) -> None:
    """From now on, give each gradient of a parameter the parameter's sharding, at the end of a backward pass.

    XLA chooses the sharding of the results of backward operators. If the batch is sharded, it replicates them.
    """
    hooks = parameter._post_accumulate_grad_hooks or {}
    if parameter.is_leaf and parameter.requires_grad and _gradient_like not in hooks.values():
        parameter.register_post_accumulate_grad_hook(_gradient_like)


def _gradient_like(parameter: Tensor) -> None:
    gradient = parameter.grad
    if gradient is None or gradient.layout != torch.strided or tracing.active():
        return  # a program of captured code constrains its gradients itself
    if is_device_tensor(parameter) and is_device_tensor(gradient) and is_array(parameter):
        set_sharding(gradient, buffer_of(parameter).spec.placement)


def memory_of(x: Tensor) -> object:
    """A key that is equal for tensors over the same elements of the same memory."""
    start = id(buffer_of(x)) if x.device.type == "jax" else x.untyped_storage().data_ptr()
    empty = not x.numel() and id(x)  # empty tensors all have the address 0
    return x.device, start, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype, empty
