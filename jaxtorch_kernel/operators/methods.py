"""Methods of `torch.Tensor` that behave differently for tensors on the device. Other tensors use torch's methods.

* `numpy.asarray(x)` copies to the host, so that matplotlib and scikit-learn accept jax tensors directly. An explicit
  `x.numpy()`, which promises shared memory, still raises torch's error, which advises to call `.cpu()` first.
* `jnp.stack([x, y])` and `jnp.ones(3) + x` use a tensor's array, through JAX's protocol `__jax_array__`. JAX calls it
  when a function converts its arguments, but not when the whole function is under `jax.jit` (`jnp.sin`).
* `repr(x)` of a tensor over several processes reads a full copy in this process, or shows no values: torch would run
  operators on it, which every process would have to call.
* `__dlpack__` and `__dlpack_device__` export the device's array: torch's versions would export an invalid pointer.

`.data = ` across devices needs no method, nor does `module.to("jax")`, whose parameters remain the same objects: torch
checks it by the operator `_has_compatible_shallow_copy_type`, and the device has a kernel for that.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
import torch.utils.dlpack
from torch.overrides import has_torch_function_unary

from ..programs import tracing
from ..storage import moves, placement
from ..storage.buffer import attached, buffer_of
from .dlpack import device_of, export
from .sharing import array_of

Tensor = torch.Tensor

_array = Tensor.__array__
_repr = Tensor.__repr__
_dlpack = Tensor.__dlpack__
_dlpack_device = Tensor.__dlpack_device__


def _is_jax(tensor: Tensor) -> bool:
    # `is_cpu` first: it is the quickest answer for most tensors.
    return (
        not tensor.is_cpu and tensor.device.type == "jax" and not has_torch_function_unary(tensor)
    )


def __array__(self: Tensor, *args: Any, **kwargs: Any) -> np.ndarray:
    if not _is_jax(self):
        return _array(self, *args, **kwargs)
    if self.requires_grad:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    kwargs.pop("copy", None)  # the result is always a copy
    return _array(self.cpu().resolve_conj().resolve_neg(), *args, **kwargs)


def __jax_array__(self: Tensor) -> jax.Array:
    """The values as a `jax.Array`, copied unless the tensor is on the device; 64-bit dtypes only if JAX allows them."""
    array = array_of(self, None if self.device.type == "jax" else True)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def __repr__(self: Tensor, *, tensor_contents: str | None = None) -> str:
    if not placement.any_mesh or not _is_jax(self) or tensor_contents is not None:
        return _repr(self, tensor_contents=tensor_contents)  # type: ignore[call-arg]  # missing in torch's stub
    buffer = attached(self.untyped_storage())
    if buffer is None or buffer.spec.placement.is_fully_addressable or tracing.active():
        return _repr(self, tensor_contents=tensor_contents)  # type: ignore[call-arg]  # missing in torch's stub
    if placement.is_readable(buffer.spec.placement):
        copy = self.detach().cpu().to(self.device).requires_grad_(self.requires_grad)
        return _repr(copy)
    spec = getattr(buffer.spec.placement, "spec", buffer.spec.placement)
    return (
        f"tensor(..., device='{self.device}', size={tuple(self.shape)}, dtype={self.dtype}, sharding={spec}: "
        "this process holds one part; call jaxtorch.gather(x) in every process to read all of it)"
    )


def __dlpack__(self: Tensor, **options: Any) -> object:
    return export(self, **options) if _is_jax(self) else _dlpack(self, **options)


def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    return device_of(self) if _is_jax(self) else _dlpack_device(self)


def _compatible(self: Tensor, other: Tensor) -> bool:
    """Whether `self.data = other` is allowed: between strided tensors, as for torch's own devices."""
    moves.note()  # torch makes the assignment right after this call
    return self.layout == other.layout == torch.strided and not (
        self.is_quantized or other.is_quantized
    )


def _is_set_to(self: Tensor, other: Tensor) -> bool:
    """Whether both are the same view of the same memory."""
    same = buffer_of(self) is buffer_of(other)
    return same and (self.shape, self.stride(), self.storage_offset()) == (
        other.shape,
        other.stride(),
        other.storage_offset(),
    )


def _record_stream(self: Tensor, stream: torch.Stream) -> None:
    """Nothing to record: XLA frees an array when its last reader is done."""


_libraries: list[torch.library.Library] = []


def install() -> None:
    """Add the methods to `torch.Tensor`, and register the three kernels."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    library.impl("_has_compatible_shallow_copy_type", _compatible, "PrivateUse1")
    library.impl("is_set_to", _is_set_to, "PrivateUse1")
    library.impl("record_stream", _record_stream, "PrivateUse1")
    for method, original in (
        (__array__, _array),
        (__repr__, _repr),
        (__dlpack__, _dlpack),
        (__dlpack_device__, _dlpack_device),
    ):
        method.__doc__ = original.__doc__
        method.__qualname__ = f"Tensor.{method.__name__}"
        setattr(Tensor, method.__name__, method)
    Tensor.__jax_array__ = __jax_array__  # type: ignore[attr-defined]
