"""Buffers: each holds the data of one torch Storage.

A tensor on the device is a plain `torch.Tensor` with a Storage that owns no memory. The data is attached to that
Storage as the Python attribute `buffer`. Every alias of the tensor (a view, `.data`, `detach()`, what autograd saves)
shares the Storage, and therefore the Buffer, and sees every write. A Buffer holds one immutable `jax.Array`; a write
replaces the array. Inside a trace the array may be a tracer; this module treats both alike.

The array may have any shape whose row-major order is the order of the Storage's memory. A tensor with the dtype, shape
and order of the array is read without any operation; every other tensor is a view (`layout.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch

from ..base import torch_private as private
from . import placement
from .dtypes import to_numpy, to_torch
from .placement import note_sharding, propagated

if TYPE_CHECKING:  # `torch.manual_seed` imports this module, and must not import jax
    import jax
    from jax.sharding import Sharding

# What computed an array: an object with the program's name, and the user's line (`programs/site.py`).


class Named(Protocol):
    """What computes a buffer: an operator's program, a captured function."""

    @property
    def name(self) -> str:
        """What it is called in messages and views."""


Origin = tuple[Named | None, CodeType, int]


class Spec:
    """The properties of a buffer that a program is compiled for: dtype, shape, sharding. Interned: compare by `is`."""

    __slots__ = ("buffer", "dtype", "nbytes", "numel", "placement", "shape")

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...], placement: Sharding):
        self.dtype = dtype
        self.shape = shape
        self.placement = placement
        note_sharding(placement)
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
    """How a tensor views its buffer: Spec, dtype, size, stride. Interned: a key holds one object for each tensor."""

    __slots__ = ("dtype", "size", "spec", "stride")

    def __init__(self, spec: Spec, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...]):
        self.spec, self.dtype, self.size, self.stride = spec, dtype, size, stride


_geometries: dict[tuple[Spec, torch.dtype, torch.Size, tuple[int, ...]], Geometry] = {}
_specs: dict[tuple[np.dtype, tuple[int, ...], Sharding], Spec] = {}


def spec_of(dtype: np.dtype, shape: tuple[int, ...], placement: Sharding) -> Spec:
    """The one Spec with these fields."""
    key = (dtype, shape, placement)
    spec = _specs.get(key)
    if spec is None:
        normal = (dtype, shape, propagated(placement))
        spec = _specs[key] = _specs.get(normal) or _specs.setdefault(normal, Spec(*normal))
    return spec


class Usage:
    """Bytes held by large buffers, and their peak.

    The counters are plain integers: if two threads update one at once, an update may be lost.

    Attributes:
        allocated: bytes held now.
        peak: the most held since the peak was last reset (`insight/memory.py` resets it before each notebook cell).
        before: the highest peak before that.
        uncounted: bytes outside large buffers when the peak was last reset.
    """

    __slots__ = ("allocated", "before", "peak", "uncounted")

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0
        self.before = 0
        self.uncounted = 0


usage = Usage()

# Counting takes half a microsecond, as long as the rest of making a Buffer, so smaller ones are not counted.
LARGE = 32 * 1024  # bytes


class Buffer:
    """One Storage's data. Read with `.array`; write with `.write`.

    `origin` is what computes the array, or None if that is unknown. `pending` is whether the array is not computed
    yet (`pending.py`).
    """

    __slots__ = ("__weakref__", "array", "origin", "spec")
    pending: ClassVar[bool] = False

    def __init__(self, array: jax.Array, spec: Spec, origin: Origin | None = None):
        self.array = array
        self.spec = spec
        self.origin = origin

    def write(self, array: jax.Array, spec: Spec, origin: Origin | None = None) -> None:
        """Replace the data. All aliases see it."""
        self.array = array
        self.spec = spec
        self.origin = origin

    def failed(self) -> None:
        """Stop counting the array: its computation failed, so it takes no memory."""


class _Counted(Buffer):
    """A large buffer, counted in `usage` while it exists."""

    __slots__ = ("counted",)

    def __init__(self, array: jax.Array, spec: Spec, origin: Origin | None = None):
        self.array = array
        self.spec = spec
        self.origin = origin
        self.counted = spec.nbytes
        usage.allocated = allocated = usage.allocated + spec.nbytes
        if allocated > usage.peak:
            usage.peak = allocated

    # A default, because the module's names are None when the interpreter ends.
    def __del__(self, usage: Usage = usage) -> None:
        usage.allocated -= self.counted

    def failed(self) -> None:
        usage.allocated -= self.counted
        usage.peak = max(usage.allocated, usage.peak - self.counted)
        self.counted = 0


class BufferWatcher(Protocol):
    """Called for each large buffer while `watch` is active, in the thread that makes or frees it."""

    def made(self, buffer: Buffer) -> None:
        """Called after a large buffer was made."""

    def freed(self, buffer: Buffer) -> None:
        """Called before a large buffer is freed."""


_init, _del = _Counted.__init__, _Counted.__del__


def watch(watcher: BufferWatcher | None) -> None:
    """Call a watcher for every large buffer that is made or freed; None stops it.

    Without a watcher this has no cost: the methods that call it replace those of the class only while it is set.
    """
    if watcher is None:
        _Counted.__init__, _Counted.__del__ = _init, _del  # type: ignore[method-assign]  # see above
        return
    made, freed = watcher.made, watcher.freed

    def init(self: _Counted, array: jax.Array, spec: Spec, origin: Origin | None = None) -> None:
        _init(self, array, spec, origin)
        made(self)

    def delete(self: _Counted, usage: Usage = usage) -> None:
        freed(self)
        _del(self, usage)

    _Counted.__init__, _Counted.__del__ = init, delete  # type: ignore[method-assign]  # see above


def attached(storage: torch.UntypedStorage) -> Buffer | None:
    """The buffer of a Storage, if it has one."""
    return getattr(storage, "buffer", None)


def attach(storage: torch.UntypedStorage, buffer: Buffer) -> torch.UntypedStorage:
    """Give a Storage a buffer; returns the Storage."""
    storage.buffer = buffer  # type: ignore[attr-defined]
    return storage


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The buffer of a tensor of the device. A Storage without one gets zeros of its size.

    Raises:
        RuntimeError: the tensor is not on the jax device.
    """
    storage = tensor.untyped_storage()
    try:
        return storage.buffer  # type: ignore[attr-defined]
    except AttributeError:
        pass
    if tensor.device.type != "jax":
        raise RuntimeError(
            f"Expected all tensors to be on the same device, jax, but found one on {tensor.device}. "
            "Move it there: `.to('jax')`."
        )
    from .arrays import in_host_memory, placed  # imports jax, which `torch.manual_seed` must not

    # torch made this Storage itself (`torch.UntypedStorage`, an empty result of a C++ kernel).
    itemsize = tensor.dtype.itemsize
    count = storage.nbytes() // itemsize
    if not count and tensor.numel():
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        count = int(tensor.storage_offset()) + reach + 1
    dtype = to_numpy(tensor.dtype)
    array, sharding = placed(in_host_memory(lambda: np.zeros(count, dtype)))
    spec = spec_of(dtype, (count,), sharding)
    buffer = spec.buffer(array, spec)
    attach(storage, buffer)
    return buffer


def wrap(array: jax.Array, spec: Spec, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A new contiguous tensor of the device over `array`, with its own Storage.

    The Storage reports 0 bytes. Use `wrap_sized` for tensors that live long (parameters, inputs).
    """
    tensor = private.create_empty_tensor(size, dtype)
    tensor.untyped_storage().buffer = spec.buffer(array, spec)  # type: ignore[attr-defined]
    return tensor


def tensor_over(array: jax.Array, where: Sharding | None = None) -> torch.Tensor:
    """A new tensor of the device with the shape and dtype of `array`, which may be a tracer.

    Args:
        array: a `jax.Array`.
        where: its placement; by default the current one, since a tracer has none.
    """
    shape = tuple(array.shape)
    where = placement.current() if where is None else where
    return wrap(array, spec_of(np.dtype(array.dtype), shape, where), shape, to_torch(array.dtype))


def wrap_sized(
    array: jax.Array,
    spec: Spec,
    size: tuple[int, ...],
    dtype: torch.dtype,
    stride: Sequence[int] | None = None,
) -> torch.Tensor:
    """Like `wrap`, with a Storage that reports its true `nbytes` and a unique address (3.5 µs slower).

    `safetensors`, `torch.save` and other code that detects shared memory rely on both.
    """
    return tensor_on(spec.buffer(array, spec), size, dtype, stride)


def tensor_on(
    buffer: Buffer, size: tuple[int, ...], dtype: torch.dtype, stride: Sequence[int] | None = None
) -> torch.Tensor:
    """As `wrap_sized`, over a new buffer."""
    tensor = private.create_empty_tensor(size, dtype)
    storage = attach(private.make_storage(buffer.spec.nbytes), buffer)
    stride = tensor.stride() if stride is None else stride
    return private.put_on_storage(tensor, storage, 0, size, stride)


def geometry(tensor: torch.Tensor, buffer: Buffer) -> Geometry:
    """How `tensor` views its buffer."""
    key = (buffer.spec, tensor.dtype, tensor.shape, tensor.stride())
    known = _geometries.get(key)
    if known is None:
        known = _geometries.setdefault(key, Geometry(*key))
    return known
