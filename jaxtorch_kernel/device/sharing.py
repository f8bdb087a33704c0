"""One tensor as a JAX array and one array as a tensor, over the same memory.

JAX takes arrays for immutable, torch writes in place. What is shared must bear that:

* A **tensor of the device** is an array already. A later write gives the tensor a new one.
* A **CPU or CUDA tensor** is shared copy-on-write, by torch's own means (`lazy_clone`): the array holds a clone, which
  has the tensor's memory until somebody writes to the tensor or a view of it; that write gives *the tensor* memory of
  its own, and the array keeps the old. A dlpack capsule of the clone would count as a write, because it hands out
  memory for writing. So the clone's memory is described to JAX by its address, through a tensor that torch makes of
  it and that keeps the clone. Only memory that torch allocated for this very tensor can be lent like this: of a part
  of a larger one, a write would copy the whole. Such tensors are copied.
* An **array as a CPU or CUDA tensor** is shared as it is. torch has nothing that would keep a write away from memory
  that is not its own. The tensor's `_version`, which counts the writes to it and its views, tells of one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils.dlpack

from .. import _torch_private as private
from .._jax_private import uncommitted
from ..storage.dtypes import to_numpy, to_torch
from ..storage.transfer import as_numpy, put, to_host

Tensor = torch.Tensor
_PLATFORM = {"cpu": "cpu", "cuda": "gpu"}


class _Memory:
    """The bytes of a tensor's storage, for libraries that read an array interface. Keeps the tensor alive."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        interface = {
            "data": (tensor.const_data_ptr(), False),  # type: ignore[attr-defined]  # not in torch's stubs
            "shape": (tensor.untyped_storage().nbytes(),),
            "typestr": "|u1",
            "version": 3,
        }
        if tensor.device.type == "cuda":
            self.__cuda_array_interface__ = interface
        else:
            self.__array_interface__ = interface


def array_of(tensor: Tensor, copy: bool | None = None) -> jax.Array:
    """The tensor's values as an array of its shape and dtype.

    Args:
        tensor: of any device.
        copy: None shares where no write can be seen and copies elsewhere, True always copies, False always shares.

    Raises:
        RuntimeError: it requires a gradient and those are recorded, it is not dense, has no data, or its array was
            deleted.
        TypeError: JAX has no such dtype.
        ValueError: with `copy=False`, where the memory cannot be shared.
        Untraceable: it is inside a trace.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "a tensor that requires grad cannot become a JAX array, for JAX would not see torch's graph. Where that is "
            "meant, pass tensor.detach() (as the tensors of module.state_dict() are) or do it under torch.no_grad(); "
            "else call the JAX function with jaxtorch.call_jax, which gradients flow through"
        )
    tensor = tensor.detach()
    if tensor.is_quantized or tensor.layout != torch.strided or tensor.is_nested:
        kind = (
            "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else tensor.layout
        )
        raise RuntimeError(
            f"JAX arrays are dense, and this tensor is {kind}: call .to_dense() or .dequantize() before"
        )
    to_numpy(tensor.dtype)
    if tensor.device.type == "meta":
        raise RuntimeError("a tensor on the meta device has no data to make an array of")
    if tensor.device.type == "jax":
        return _array_under(tensor, copy)
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return uncommitted(_imported(tensor, copy))


def _array_under(tensor: Tensor, copy: bool | None) -> jax.Array:
    """The array of a tensor of the device."""
    from ..dispatch import tracing
    from ..dispatch.read import contiguous_array
    from ..storage.buffer import buffer_of

    own = buffer_of(tensor).array
    if isinstance(own, jax.Array) and not isinstance(own, jax.core.Tracer) and own.is_deleted():
        raise RuntimeError(
            "the array under this tensor was deleted: a JAX function that took it as a donated argument has its "
            "memory. Donate a copy: jaxtorch.to_jax(tensor, copy=True)"
        )
    array = contiguous_array(tensor)
    tracing.forbid(array, "handed to JAX (jaxtorch.call_jax calls a JAX function with it)")
    if copy:
        return array.copy() if array is own else array
    if copy is False and array is not own:
        raise _cannot_share("it is a view, which has to be read from its buffer")
    return array


def _imported(tensor: Tensor, copy: bool | None) -> jax.Array:
    """An array over a tensor of another device, or over a copy."""
    if not _jax_is_on(tensor.device):
        if copy is False:
            raise _cannot_share(f"JAX does not run on {tensor.device}")
        return put(as_numpy(tensor.cpu()))[0]
    if copy is False:
        return _shared(tensor)
    lent = None if copy else _lent(tensor)
    if lent is None:
        plain = tensor.resolve_conj().resolve_neg()
        lent = plain.clone(memory_format=torch.contiguous_format)
    return jax.dlpack.from_dlpack(lent)


def _jax_is_on(device: torch.device) -> bool:
    """Whether JAX computes where torch's device is."""
    platform = _PLATFORM.get(device.type)
    try:
        return platform is not None and bool(jax.local_devices(backend=platform))
    except RuntimeError:  # no such backend in this process
        return False


def _lent(tensor: Tensor) -> Tensor | None:
    """A tensor over the same memory that no write to this one can reach, or None where there is no such thing."""
    storage = tensor.untyped_storage()
    if (
        not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
        or not 0 < tensor.numel() * tensor.itemsize == storage.nbytes()
    ):
        return None
    clone = private.lazy_clone(tensor)
    if clone is None:
        return None
    memory: Any = _Memory(clone)
    if tensor.device.type == "cuda":
        raw = torch.as_tensor(memory, device=tensor.device)
    else:
        raw = torch.from_numpy(np.asarray(memory))
    return raw.view(tensor.dtype).view(tensor.shape)


def _shared(tensor: Tensor) -> jax.Array:
    """An array over the tensor's own memory, whoever writes to it.

    Raises:
        ValueError: that cannot be.
    """
    if tensor.is_conj() or tensor.is_neg():
        raise _cannot_share("its values are lazily conjugated or negated, and so are not in memory")
    if (
        not tensor.is_contiguous()
    ):  # JAX takes a transposed one, and may then read it in the wrong order
        raise _cannot_share(f"strides {tensor.stride()} are not row-major")
    array = jax.dlpack.from_dlpack(tensor)
    if tensor.numel() and array.unsafe_buffer_pointer() != tensor.const_data_ptr():  # type: ignore[attr-defined]
        raise _cannot_share("XLA wants memory that begins at a multiple of 64 bytes")
    return array


def _cannot_share(why: str) -> ValueError:
    return ValueError(f"the memory cannot be shared (copy=False): {why}. Leave copy out")


def tensor_of(
    array: jax.Array, device: torch.device | str | None = None, copy: bool | None = None
) -> Tensor:
    """The array's values as a tensor of its shape and dtype.

    Args:
        array: of any platform, on one device or many.
        device: where the tensor is. By default torch's default device if one was set, else where the array is.
        copy: True always copies, False raises where a copy would be needed.

    Raises:
        TypeError: it is traced, a random key, or of a dtype that torch lacks.
        RuntimeError: it was deleted.
        ValueError: with `copy=False`, where the memory cannot be shared.
    """
    if isinstance(array, jax.core.Tracer):
        raise TypeError(
            "a traced array has no value yet, and no tensor can be made of it: make the torch code a JAX function "
            "with jaxtorch.jax_view, and JAX traces into it"
        )
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TypeError("torch has no type for a JAX key: pass jax.random.key_data(key)")
    to_torch(array.dtype)
    if array.is_deleted():
        raise RuntimeError(
            f"the array {array.dtype}{list(array.shape)} was deleted: a JAX function took it as a donated argument, "
            "or somebody called its .delete(). Make the tensor before, with copy=True"
        )
    target = _default_for(array) if device is None else torch.device(device)
    if target.type == "jax":
        return _on_the_device(array, target, copy)
    if _is_over(array, target):
        shared = torch.utils.dlpack.from_dlpack(array.block_until_ready())
        return shared.clone() if copy else shared
    if copy is False:
        raise _cannot_share(f"the array is on {sorted(map(str, array.devices()))}, not on {target}")
    return to_host(np.asarray(array)).to(target)


def _on_the_device(array: jax.Array, target: torch.device, copy: bool | None) -> Tensor:
    from ..dispatch.factories import check_index
    from .dlpack import in_rows
    from .module import from_dlpack

    check_index(target)
    rows = in_rows(array)
    if copy is False and rows is not array:
        raise _cannot_share("its elements do not lie in row-major order")
    return from_dlpack(array.copy() if copy and rows is array else rows)


def _default_for(array: jax.Array) -> torch.device:
    """Torch's default device if somebody set one, else where the array's memory is."""
    chosen = private.device_block() or private.default_device()
    if chosen is not None:
        return chosen
    if len(array.sharding.device_set) == 1:
        own: Any = next(iter(array.sharding.device_set))
        if own.platform == "cpu":
            return torch.device("cpu")
        if own.platform == "gpu" and torch.cuda.is_available():
            return torch.device("cuda", own.local_hardware_id)
    return torch.device("jax")


def _is_over(array: jax.Array, target: torch.device) -> bool:
    """Whether the array is one piece of memory of the target."""
    if len(array.sharding.device_set) > 1:
        return False
    own: Any = next(iter(array.sharding.device_set))
    if own.platform != _PLATFORM.get(target.type):
        return False
    return target.type == "cpu" or target.index in (None, own.local_hardware_id)
