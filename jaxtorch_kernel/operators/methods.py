"""Methods of `torch.Tensor` that behave differently for tensors on the device; other tensors use torch's own.

* `numpy.asarray(x)` copies to the host, so that matplotlib and scikit-learn accept jax tensors directly. An explicit
  `x.numpy()`, which promises shared memory, still raises torch's error with its advice to call `.cpu()` first.
* `jnp.stack([x, y])`, `jnp.ones(3) + x` use a tensor's array, through JAX's protocol `__jax_array__`. JAX calls it
  when a function converts its arguments, but not when the whole function is under `jax.jit` (`jnp.sin`).
* `__dlpack__` and `__dlpack_device__` export the device's array: torch's versions would export an invalid pointer.

`.data = ` across devices, and thus `module.to("jax")` with parameters that remain the same objects, needs no method:
torch calls the operator `_has_compatible_shallow_copy_type` to check it, and the device has a kernel for it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack
from torch.overrides import has_torch_function_unary

from ..storage import moves

Tensor = torch.Tensor

_array = Tensor.__array__
_dlpack = Tensor.__dlpack__
_dlpack_device = Tensor.__dlpack_device__


def _is_jax(tensor: Tensor) -> bool:
    # `is_cpu` first: it is the quickest answer for most tensors.
    return (
        not tensor.is_cpu and tensor.device.type == "jax" and not has_torch_function_unary(tensor)
    )


def __array__(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not _is_jax(self):
        return _array(self, *args, **kwargs)
    if self.requires_grad:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    kwargs.pop("copy", None)  # it is always a copy
    return _array(self.cpu().resolve_conj().resolve_neg(), *args, **kwargs)


def __jax_array__(self: Tensor) -> Any:
    """The values as a `jax.Array`, copied unless the tensor is on the device; 64-bit dtypes only if JAX allows them."""
    import jax

    from .sharing import array_of

    array = array_of(self, None if self.device.type == "jax" else True)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def __dlpack__(self: Tensor, **options: Any) -> Any:
    if not _is_jax(self):
        return _dlpack(self, **options)
    from .dlpack import export

    return export(self, **options)


def __dlpack_device__(self: Tensor) -> Any:
    if not _is_jax(self):
        return _dlpack_device(self)
    from .dlpack import device_of

    return device_of(self)


def _compatible(self: Tensor, other: Tensor) -> bool:
    """Whether `self.data = other` may be: between strided tensors, as for torch's own devices."""
    moves.note()  # if it may, it is done next
    return self.layout == other.layout == torch.strided and not (
        self.is_quantized or other.is_quantized
    )


def _record_stream(self: Tensor, stream: Any) -> None:
    """Nothing to record: XLA frees an array when its last reader is done."""


_libraries: list[Any] = []


def install() -> None:
    """Add the methods to `torch.Tensor`, and register the two kernels."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    library.impl("_has_compatible_shallow_copy_type", _compatible, "PrivateUse1")
    library.impl("record_stream", _record_stream, "PrivateUse1")
    for method, original in (
        (__array__, _array),
        (__dlpack__, _dlpack),
        (__dlpack_device__, _dlpack_device),
    ):
        method.__doc__ = original.__doc__
        method.__qualname__ = f"Tensor.{method.__name__}"
        setattr(Tensor, method.__name__, method)
    Tensor.__jax_array__ = __jax_array__  # type: ignore[attr-defined]  # ours, added
