"""Memory shared with other libraries through the dlpack protocol, without a copy.

On export, a jax tensor passes its current `jax.Array`: JAX arrays never change, so a later in-place operator
gives the tensor a new array and the receiver keeps the old one. On the CPU platform the receiver sees CPU
memory (`np.from_dlpack`, `jax.dlpack.from_dlpack`, another torch tensor), on a GPU that GPU's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.utils.dlpack


def _array(tensor: torch.Tensor) -> Any:
    """The tensor's values as the array to export.

    Raises:
        BufferError: the tensor requires grad, as for every torch tensor.
    """
    from ..dispatch.read import contiguous_array
    from ..programs import tracing
    from ..storage import transfer

    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    array = contiguous_array(tensor)
    tracing.forbid(array, "exported by dlpack")
    if next(iter(array.devices())).platform == "cpu":
        transfer.wait(array)  # JAX ends the process where XLA got no memory for the array
    return array.reshape(tensor.shape)


def export(tensor: torch.Tensor, **options: Any) -> Any:
    """`Tensor.__dlpack__` of the device."""
    if options.get("stream") == -1:  # torch's way to say "no synchronization", JAX's is None
        options["stream"] = None
    return _array(tensor).__dlpack__(**options)


def device_of(tensor: torch.Tensor) -> tuple[Any, int]:
    """`Tensor.__dlpack_device__` of the device: where the array physically is."""
    from ..storage.buffer import buffer_of

    return buffer_of(tensor).array.__dlpack_device__()


def from_dlpack(source: Any) -> torch.Tensor:
    """A tensor of the jax device over a `jax.Array` (its memory, no copy), or over a copy of anything else."""
    import jax

    from ..storage.buffer import spec_of, wrap_sized
    from ..storage.dtypes import to_torch
    from ..storage.transfer import to_device

    if not isinstance(source, jax.Array):
        return to_device(torch.utils.dlpack.from_dlpack(source).cpu())
    source = in_rows(source)
    dtype = np.dtype(source.dtype)
    spec = spec_of(dtype, tuple(source.shape), source.sharding)
    return wrap_sized(source, spec, source.shape, to_torch(dtype))


def in_rows(array: Any) -> Any:
    """The `jax.Array` with its elements in row-major order, as the device's programs take it.

    An array over another library's memory may have them in another order, which JAX notes as its layout.
    """
    layout = array.format.layout
    if layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim)):
        return array
    return array.copy()
