"""Factories that create a Storage, and the operators that change one: `empty`, `resize_`, `set_`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import SingleDeviceSharding

from ..base import torch_private as private
from ..dispatch import deferring
from ..dispatch.filling import Budget, host_bytes
from ..dispatch.operation import Operation
from ..dispatch.registry import kernel
from ..lowerings.registry import Lowering
from ..programs import tracing
from ..programs.untraceable import Untraceable
from ..storage import moves, placement
from ..storage.buffer import Buffer, attached, buffer_of, spec_of, tensor_on, wrap, wrap_sized
from ..storage.checks import check_index, check_layout
from ..storage.dtypes import to_numpy, to_torch
from ..storage.layout import contiguous_strides, is_row_major
from ..storage.transfer import zeros
from .storages import adopt, sized

Tensor = torch.Tensor

_CHANNELS_LAST = {torch.channels_last: (0, 2, 3, 1), torch.channels_last_3d: (0, 2, 3, 4, 1)}


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    return jnp.zeros(shape, dtype)


_make_zeros = Operation(None, Lowering(_zeros), name="empty", constant=0)
_budget = Budget()


def _zeros_on_device(shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
    """Zeros on the current device: at first by transfers, later by a program (`dispatch/filling.py`)."""
    if deferring.recorder is not None and not tracing.depth:
        return buffer_of(_make_zeros(shape, dtype))
    where = placement.current()
    key = shape, dtype, where
    if isinstance(where, SingleDeviceSharding) and _budget.is_left(
        key, host_bytes(shape, dtype.itemsize)
    ):
        array, spec = zeros(shape, dtype)
        _budget.spend(key, spec.nbytes)
        return spec.buffer(array, spec)
    return buffer_of(_make_zeros(shape, dtype))


def strides_for(size: Sequence[int], memory_format: torch.memory_format) -> tuple[int, ...]:
    """Strides of a tensor of this size in a memory format.

    Raises:
        RuntimeError: the format requires another number of dimensions.
    """
    order = _CHANNELS_LAST.get(memory_format)
    if order is None:
        return contiguous_strides(size)
    if len(order) != len(size):
        raise RuntimeError(f"required rank {len(order)} tensor to use {memory_format} format")
    strides, step = [0] * len(size), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(size[d], 1)
    return tuple(strides)


Factory = Callable[..., Tensor]


def factory_kernel(*names: str) -> Callable[[Factory], Factory]:
    """As `kernel`, for factories: checks `layout`, `device` and `pin_memory`, which the function does not take."""

    def register(function: Factory) -> Factory:
        @functools.wraps(function)
        def checked(
            *args: object,
            layout: torch.layout | None = None,
            device: torch.device | None = None,
            pin_memory: bool | None = None,
            **options: object,
        ) -> Tensor:
            check_layout(layout, pin_memory)
            check_index(device)
            return function(*args, **options)

        return kernel(*names)(checked)

    return register


def make_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros over a Storage just large enough."""
    size, stride = tuple(size), tuple(stride)
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")
    if 0 in size:
        count = 0
    else:
        count = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    plain = stride == contiguous_strides(size)
    shape = size if plain else (count,)
    numpy_dtype = to_numpy(dtype)
    trace = tracing.current()
    if trace is not None and not trace.eager:
        # An operation of the trace, not a constant.
        spec = spec_of(numpy_dtype, shape, placement.current())
        buffer = spec.buffer(_zeros(shape, numpy_dtype), spec)
    else:
        buffer = _zeros_on_device(shape, numpy_dtype)
    result = tensor_on(buffer, size, dtype, stride)
    if trace is not None:
        trace.add_created(buffer_of(result))
    return result


@factory_kernel("empty.memory_format")
def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """`torch.empty`: zeros, because XLA cannot leave memory uninitialized."""
    stride = strides_for(size, memory_format or torch.contiguous_format)
    return make_strided(size, stride, dtype or torch.get_default_dtype())


@factory_kernel("empty_strided")
def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None
) -> Tensor:
    """`torch.empty_strided`."""
    return make_strided(size, stride, dtype or torch.get_default_dtype())


@kernel("resize_")
def resize_(
    self: Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> Tensor:
    """Change the geometry in place. The memory grows if necessary, for all aliases."""
    size = tuple(size)
    stride = strides_for(size, memory_format or torch.contiguous_format)
    needed = 0
    if 0 not in size:
        needed = int(self.storage_offset()) + 1
        needed += sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    _grow(self, needed)
    set_geometry(self, size, stride, self.storage_offset())
    return self


def _append(base: jax.Array, count: int) -> jax.Array:
    flat = base.reshape(-1)
    return jnp.concatenate([flat, jnp.zeros(count - flat.shape[0], flat.dtype)])


_grown = Operation(None, Lowering(_append), name="resize_")


def _grow(tensor: Tensor, count: int) -> None:
    """Make the buffer hold at least `count` elements of the tensor's dtype."""
    buffer = buffer_of(tensor)
    spec = buffer.spec
    dtype = to_numpy(tensor.dtype)
    if spec.nbytes >= count * dtype.itemsize:
        return
    trace = tracing.current()
    if trace is not None and not trace.created(buffer):
        raise Untraceable(
            "`resize_` grows the memory of a tensor that was created outside the captured code",
            "Create a new tensor of that size.",
        )
    elements = -(-count * dtype.itemsize // spec.dtype.itemsize)
    if spec.numel == 0:
        array, new = zeros((count,), dtype)
        buffer.write(array, new)
        return
    memory = wrap(buffer.array, spec, spec.shape, to_torch(spec.dtype))
    grown = buffer_of(_grown(memory, elements))
    buffer.write(grown.array, grown.spec)


def set_geometry(
    tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | torch.SymInt
) -> None:
    """Set size, stride and offset in place, over the same buffer."""
    buffer_of(tensor)
    storage = sized(tensor.untyped_storage())
    private.put_on_storage(tensor, storage, int(offset), size, stride)
    moves.note()


@kernel("set_.source_Tensor")
def set_tensor(self: Tensor, source: Tensor) -> Tensor:
    """`a.set_(b)`: the same memory and geometry as `b`."""
    buffer_of(source)
    return _set(
        self, source.untyped_storage(), source.storage_offset(), source.shape, source.stride()
    )


@kernel("set_.source_Storage")
def set_storage(self: Tensor, source: torch.UntypedStorage) -> Tensor:
    """All of a Storage as one row of the tensor's dtype."""
    count = _storage_bytes(source) // self.dtype.itemsize
    return _set(self, source, 0, (count,), (1,))


@kernel("set_.source_Storage_storage_offset")
def set_storage_offset(
    self: Tensor,
    source: torch.UntypedStorage,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> Tensor:
    """A Storage with any geometry."""
    stride = tuple(stride) or contiguous_strides(size)
    return _set(self, source, storage_offset, size, stride)


@kernel("set_.source_Tensor_storage_offset")
def set_tensor_offset(
    self: Tensor,
    source: Tensor,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> Tensor:
    """Another tensor's memory with any geometry."""
    buffer_of(source)
    stride = tuple(stride) or contiguous_strides(size)
    return _set(self, source.untyped_storage(), storage_offset, size, stride)


@kernel("set_")
def set_empty(self: Tensor) -> Tensor:
    """`a.set_()`: no memory, no elements."""
    array, spec = zeros((0,), to_numpy(self.dtype))
    fresh = wrap_sized(array, spec, (0,), self.dtype)
    return _set(self, fresh.untyped_storage(), 0, (0,), (1,))


def _storage_bytes(storage: torch.UntypedStorage) -> int:
    buffer = attached(storage)
    return int(storage.nbytes() if buffer is None else buffer.spec.nbytes)


def _set(
    self: Tensor,
    storage: torch.UntypedStorage,
    offset: int | torch.SymInt,
    size: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    buffer = attached(storage)
    storage = sized(storage)
    if buffer is not None and not offset and is_row_major(tuple(size), tuple(stride)):
        adopt(buffer, self.dtype, size)
    private.put_on_storage(self, storage, int(offset), size, stride)
    moves.note()
    return self
