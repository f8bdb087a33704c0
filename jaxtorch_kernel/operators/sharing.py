"""Conversion of a tensor to a JAX array and back, over the same memory.

JAX assumes that arrays are immutable, but torch writes in place. A tensor on the device is safe: it already is an
array, and a write gives the tensor a new one. CPU and CUDA tensors are not: their memory is shared through dlpack, as
with NumPy, and a write is visible on the other side, even to a JAX function that is still running. A tensor's
`_version`, which counts the writes to it and its views, reveals a write; `copy=True` keeps the two separate.

torch's copy-on-write (`_lazy_clone`) would separate them without a copy, but it is not safe here: four threads, each
writing to its own tensors while XLA's threads released arrays over them, crashed within seconds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from ..base import torch_private as private
from ..base.jax_private import uncommitted
from ..dispatch.read import contiguous_array
from ..programs import untraceable
from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.checks import check_index
from ..storage.dtypes import to_numpy, to_torch
from ..storage.placement import copied
from ..storage.transfer import as_numpy, host_values, put, to_host
from .dlpack import array_over, from_dlpack, platform_of, row_major, single_device, tensor_over

Tensor = torch.Tensor
_ALIGNMENT = 64  # XLA's on a CPU; the allocators of GPUs align to more


def array_of(tensor: Tensor, copy: bool | None = None) -> jax.Array:
    """The tensor's values as an array of its shape and dtype.

    Args:
        tensor: of any device.
        copy: None shares memory if that is possible and copies otherwise, True always copies, False always shares.

    Raises:
        RuntimeError: the tensor requires a gradient while gradients are recorded, is not dense, has no data, or its
            array was deleted.
        TypeError: JAX has no such dtype.
        ValueError: with `copy=False`, if the memory cannot be shared.
        Untraceable: the tensor is inside a trace.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "a tensor that requires grad cannot become a JAX array, because JAX does not see torch's graph. If you do "
            "not need the gradient, pass tensor.detach() (the tensors of module.state_dict() are detached) or "
            "convert it under torch.no_grad(). Otherwise call the JAX function with jaxtorch.call_jax: gradients flow "
            "through it"
        )
    tensor = tensor.detach()
    if tensor.is_quantized or tensor.layout != torch.strided or tensor.is_nested:
        kind = (
            "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else tensor.layout
        )
        raise RuntimeError(
            f"JAX arrays are dense, but this tensor is {kind}: call .to_dense() or .dequantize() first"
        )
    to_numpy(tensor.dtype)
    if tensor.device.type == "meta":
        raise RuntimeError("a tensor on the meta device has no data to convert to an array")
    if tensor.device.type == "jax":
        return _array_under(tensor, copy)
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return uncommitted(_imported(tensor, copy))


def _array_under(tensor: Tensor, copy: bool | None) -> jax.Array:
    """The array of a tensor of the device."""
    memory = buffer_of(tensor).array
    is_value = isinstance(memory, jax.Array) and not isinstance(memory, jax.core.Tracer)
    if is_value and memory.is_deleted():
        raise RuntimeError(
            "the array behind this tensor was deleted: it was a donated argument of a JAX function, which has reused "
            "its memory. Donate a copy: jaxtorch.to_jax(tensor, copy=True)"
        )
    array = contiguous_array(tensor)
    untraceable.forbid(
        array, "converted to a JAX array (jaxtorch.call_jax calls a JAX function with it)"
    )
    if copy:
        return copied(array) if array is memory else array
    if copy is False and array is not memory:
        raise _cannot_share("it is a view, and reading it from its buffer makes a copy")
    return array


def _imported(tensor: Tensor, copy: bool | None) -> jax.Array:
    """An array over a tensor of another device, or over a copy."""
    if not _jax_is_on(tensor.device):
        if copy is False:
            raise _cannot_share(f"JAX does not run on {tensor.device}")
        return put(as_numpy(tensor.cpu()))[0]
    obstacle = _obstacle(tensor)
    if copy is False and obstacle:
        raise _cannot_share(obstacle)
    if copy or obstacle:
        plain = tensor.resolve_conj().resolve_neg()
        return array_over(plain.clone(memory_format=torch.contiguous_format))
    return array_over(tensor)


def _jax_is_on(device: torch.device) -> bool:
    """Whether JAX computes on torch's device."""
    platform = platform_of(device)
    try:
        return platform is not None and bool(jax.local_devices(backend=platform))
    except RuntimeError:  # no such backend in this process
        return False


def _obstacle(tensor: Tensor) -> str:
    """Why JAX cannot use the tensor's memory; empty if it can."""
    if tensor.is_conj() or tensor.is_neg():
        return "it is lazily conjugated or negated, so its values are not in memory"
    if not tensor.is_contiguous():
        # JAX accepts dense strides as a layout, but reads them wrongly if the array is not committed to its device.
        return f"strides {tensor.stride()} are not row-major"
    if tensor.numel() and tensor.data_ptr() % _ALIGNMENT:
        return f"XLA requires memory that is aligned to {_ALIGNMENT} bytes"
    return ""


def _cannot_share(why: str) -> ValueError:
    return ValueError(
        f"the memory cannot be shared (copy=False): {why}. Omit copy=False to allow a copy"
    )


def tensor_of(
    array: jax.Array, device: torch.device | str | None = None, copy: bool | None = None
) -> Tensor:
    """The array's values as a tensor of its shape and dtype.

    Args:
        array: of any platform, on one device or many.
        device: where the tensor is. By default torch's default device if one was set, else where the array is.
        copy: True always copies, False raises if a copy would be needed.

    Raises:
        TypeError: the array is traced, a random key, or of a dtype that torch lacks.
        RuntimeError: the array was deleted.
        ValueError: with `copy=False`, if the memory cannot be shared.
    """
    if isinstance(array, jax.core.Tracer):
        raise TypeError(
            "a traced array has no value yet and cannot become a tensor: turn the torch code into a JAX function "
            "with jaxtorch.jax_view, and JAX traces through it"
        )
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TypeError("torch has no dtype for a JAX key: pass jax.random.key_data(key)")
    to_torch(array.dtype)
    if array.is_deleted():
        raise RuntimeError(
            f"the array {array.dtype}{list(array.shape)} was deleted: it was a donated argument of a JAX function, "
            "or its .delete() was called. Create the tensor before that, with copy=True"
        )
    target = _default_for(array) if device is None else torch.device(device)
    if target.type == "jax":
        return _on_the_device(array, target, copy)
    if _is_on(array, target):
        shared = tensor_over(array)
        return shared.clone() if copy else shared
    if copy is False:
        raise _cannot_share(f"the array is on {sorted(map(str, array.devices()))}, not on {target}")
    return to_host(host_values(array)).to(target)


def _on_the_device(array: jax.Array, target: torch.device, copy: bool | None) -> Tensor:
    check_index(target)
    array = _on_auto_axes(array)
    rows = row_major(array)
    if copy is False and rows is not array:
        raise _cannot_share("its elements are not stored in row-major order")
    torch.jax.init()  # type: ignore[attr-defined]  # the device may not have been used before
    return from_dlpack(copied(array) if copy and rows is array else rows)


def _on_auto_axes(array: jax.Array) -> jax.Array:
    """The same memory on a mesh whose axes have the type Auto, as torch's operators need it."""
    sharding = placement.propagated(array.sharding)
    return array if sharding == array.sharding else jax.device_put(array, sharding)


def _default_for(array: jax.Array) -> torch.device:
    """Torch's default device if one was set, otherwise the device of the array's memory."""
    chosen = private.device_block() or private.default_device()
    if chosen is not None:
        return chosen
    device = single_device(array.sharding)
    if device is not None and device.platform == "cpu":
        return torch.device("cpu")
    if device is not None and device.platform == "gpu" and torch.cuda.is_available():
        return torch.device("cuda", device.local_hardware_id)
    return torch.device("jax")


def _is_on(array: jax.Array, target: torch.device) -> bool:
    """Whether the array is one piece of memory of the target device."""
    device = single_device(array.sharding)
    if device is None or device.platform != platform_of(target):
        return False
    return target.type == "cpu" or target.index in (None, device.local_hardware_id)
