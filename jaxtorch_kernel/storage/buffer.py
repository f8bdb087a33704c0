"""The cell that holds a Storage's data.

A tensor on the device is a plain `torch.Tensor` with a Storage that owns no memory. The data is attached to that
Storage as the Python attribute `buffer`: every alias of the tensor (a view, `.data`, `detach()`, autograd's own)
shares the Storage and thus the Buffer, and so sees every write. A Buffer holds one immutable `jax.Array`; writing
replaces the array. Inside a trace the array may be a tracer; this module treats both alike.

The array holds the Storage's memory in order: it may have any shape whose row-major order is the memory order. A
tensor that is a whole contiguous array needs no reshape; every other tensor is a view (`layout.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..base import torch_private as private
from . import placement
from .dtypes import to_numpy, to_torch


class Spec:
    """The properties of a buffer that a program is compiled for: dtype, shape, placement. Interned: compare by `is`."""

    __slots__ = ("buffer", "dtype", "nbytes", "numel", "placement", "shape")

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...], placement: Any):
        self.dtype = dtype
        self.shape = shape
        self.placement = placement
        numel = 1
        for n in shape:
            numel *= n
        self.numel = numel
        self.nbytes = numel * dtype.itemsize
        # The class of buffers with this spec.
        self.buffer: type[Buffer] = Buffer if self.nbytes < LARGE else _Counted

    def __repr__(self) -> str:
        return f"Spec({self.dtype}{list(self.shape)}, {self.placement})"


class Geometry:
    """A tensor's view of its buffer: Spec, dtype, size, stride. Interned, so that a program's key holds one object
    for each tensor, compared by `is`.
    """

    __slots__ = ("dtype", "size", "spec", "stride")

    def __init__(self, spec: Spec, dtype: torch.dtype, size: Any, stride: Any):
        self.spec, self.dtype, self.size, self.stride = spec, dtype, size, stride


_geometries: dict[tuple[Any, ...], Geometry] = {}
_specs: dict[tuple[np.dtype, tuple[int, ...], Any], Spec] = {}


def spec_of(dtype: np.dtype, shape: tuple[int, ...], placement: Any) -> Spec:
    """The one Spec with these fields."""
    key = (dtype, shape, placement)
    spec = _specs.get(key)
    if spec is None:
        spec = _specs.setdefault(key, Spec(*key))
    return spec


class Usage:
    """Bytes held by large buffers, and their peak. Plain integers: two threads may lose an update of each other.

    `peak` is that of a stretch (`insight/memory.py`: a cell), `before` the highest of the stretches before it.
    """

    __slots__ = ("allocated", "before", "peak", "uncounted")

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self.before = 0
        self.uncounted = 0  # everything else, when the peak was last reset


usage = Usage()

# Counting costs half a microsecond a tensor: as much as everything else about a Buffer. Small ones are not counted.
LARGE = 32 * 1024  # bytes


class Buffer:
    """One Storage's data. Read with `.array`; write with `.write`.

    `origin` tells what computes it: the program and the user's line (`programs/site.py`), or None.
    """

    __slots__ = ("__weakref__", "array", "origin", "spec")

    def __init__(self, array: Any, spec: Spec, origin: Any = None):
        self.array = array
        self.spec = spec
        self.origin = origin

    def write(self, array: Any, spec: Spec, origin: Any = None) -> None:
        """Replace the data. All aliases see it."""
        self.array = array
        self.spec = spec
        self.origin = origin

    def failed(self) -> None:
        """The data turned out to be an error, and takes no memory."""


class _Counted(Buffer):
    """A large buffer, counted in `usage` while it lives."""

    __slots__ = ("counted",)

    def __init__(self, array: Any, spec: Spec, origin: Any = None):
        self.array = array
        self.spec = spec
        self.origin = origin
        self.counted = spec.nbytes
        usage.allocated = allocated = usage.allocated + spec.nbytes
        if allocated > usage.peak:
            usage.peak = allocated

    def __del__(self) -> None:
        usage.allocated -= self.counted

    def failed(self) -> None:
        usage.allocated -= self.counted
        usage.peak = max(usage.allocated, usage.peak - self.counted)
        self.counted = 0


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The buffer behind a tensor of the device; a Storage that has none yet gets zeros of its size.

    Raises:
        RuntimeError: the tensor is not on the jax device.
    """
    storage = tensor.untyped_storage()
    try:
        return storage.buffer  # type: ignore[attr-defined]
    except AttributeError:
        pass
    if tensor.device.type != "jax":
        raise RuntimeError(f"expected a tensor on the jax device, got one on {tensor.device}")
    from .arrays import in_host_memory, placed  # jax, which `torch.manual_seed` must not import

    # A Storage made by torch itself (`torch.UntypedStorage`, an empty result of a C++ kernel).
    itemsize = tensor.dtype.itemsize
    count = storage.nbytes() // itemsize
    if not count and tensor.numel():
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        count = int(tensor.storage_offset()) + reach + 1
    dtype = to_numpy(tensor.dtype)
    array, where = placed(in_host_memory(lambda: np.zeros(count, dtype)))
    spec = spec_of(dtype, (count,), where)
    buffer = storage.buffer = spec.buffer(array, spec)  # type: ignore[attr-defined]
    return buffer


def wrap(array: Any, spec: Spec, size: Any, dtype: torch.dtype) -> torch.Tensor:
    """A new contiguous tensor of the device over `array`, with its own Storage.

    The Storage reports 0 bytes; `wrap_sized` is for tensors that outlive the moment (parameters, inputs).
    """
    tensor = private.create_empty_tensor(size, dtype)
    tensor.untyped_storage().buffer = spec.buffer(array, spec)  # type: ignore[attr-defined]
    return tensor


def tensor_over(array: Any, where: Any = None) -> torch.Tensor:
    """A new tensor of the device with the shape and dtype of `array`, which may be a tracer.

    Args:
        array: a `jax.Array`.
        where: its placement; by default the current one, since a tracer has none.
    """
    shape = tuple(array.shape)
    where = placement.current() if where is None else where
    return wrap(array, spec_of(np.dtype(array.dtype), shape, where), shape, to_torch(array.dtype))


def wrap_sized(
    array: Any, spec: Spec, size: Any, dtype: torch.dtype, stride: Any = None
) -> torch.Tensor:
    """Like `wrap`, with a Storage that reports its true `nbytes` and a unique address (3.5 µs slower).

    `safetensors`, `torch.save` and anything else that looks for shared memory rely on both.
    """
    tensor = private.create_empty_tensor(size, dtype)
    storage = private.make_storage(spec.nbytes)
    storage.buffer = spec.buffer(array, spec)  # type: ignore[attr-defined]
    stride = tensor.stride() if stride is None else stride
    return private.put_on_storage(tensor, storage, 0, size, stride)


def geometry(tensor: torch.Tensor, buffer: Buffer) -> Geometry:
    """The view that `tensor` has of its buffer."""
    key = (buffer.spec, tensor.dtype, tensor.shape, tensor.stride())
    found = _geometries.get(key)
    if found is None:
        found = _geometries.setdefault(key, Geometry(*key))
    return found
