"""A tensor's values as one array in logical order, whatever its strides."""

from __future__ import annotations

import jax
import numpy as np
import torch
from jax.sharding import SingleDeviceSharding

from ..lowerings.registry import Lowering
from ..programs import tracing, untraceable, watching
from ..programs.atomic import was_replaced
from ..programs.errors import explain_buffer
from ..programs.writes import DONATED_ERRORS
from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.dtypes import to_numpy
from ..storage.layout import is_array
from ..storage.transfer import host_values
from .operation import Operation
from .value_checks import raise_reported


def _identity(x: jax.Array) -> jax.Array:
    return x


_read: Operation | None = None
# The largest buffer, in bytes, that is transferred to read a small view of it.
_MOST = 1 << 20


def contiguous_array(tensor: torch.Tensor) -> jax.Array:
    """The array (or tracer) of a tensor of the device, with the tensor's shape and dtype.

    It is the buffer's array if the tensor is all of it, else the result of a compiled read. Do not donate it.
    """
    array = _memory_array(tensor)
    conjugate, negative = tensor.is_conj(), tensor.is_neg()  # lazily: not in memory
    if not (conjugate or negative):
        return array
    with jax.enable_x64(True):
        array = jax.lax.conj(array) if conjugate else array
        return -array if negative else array


def _memory_array(tensor: torch.Tensor) -> jax.Array:
    """The values in memory, without the lazy conjugation and negation."""
    global _read
    buffer = buffer_of(tensor)
    if is_array(tensor):
        trace = tracing.current() if tracing.depth else None
        if trace is None or (trace.eager and trace.is_fresh(buffer)):
            return buffer.array
        if tensor.requires_grad:
            trace.add_reader(tensor)
        array: jax.Array = trace.read(buffer)
        return array
    if _read is None:
        _read = Operation(None, Lowering(_identity), name="read")
    with torch.no_grad():
        return buffer_of(_read(tensor)).array


def _is_viewed_on_host(tensor: torch.Tensor) -> bool:
    """Whether to read a view on the host, from all of its buffer.

    A program for each shape takes 15 to 40 ms to compile, and the runtime transfers a buffer without one.
    """
    spec = buffer_of(tensor).spec
    lazy = tensor.is_conj() or tensor.is_neg()
    if tracing.active() or lazy or is_array(tensor) or to_numpy(tensor.dtype) != spec.dtype:
        return False
    if not isinstance(spec.placement, SingleDeviceSharding):
        return False
    return placement.is_on_host(spec.placement) or spec.nbytes <= max(_MOST, 2 * tensor.nbytes)


def _viewed(values: np.ndarray, tensor: torch.Tensor) -> np.ndarray:
    """What a tensor views of the values of its buffer."""
    size, stride = tuple(tensor.shape), tensor.stride()
    row = values.reshape(-1)[tensor.storage_offset() :]
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= len(row):
        raise RuntimeError(f"a tensor of size {list(size)} reaches beyond its storage")
    strides = [step * values.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(row, size, strides, writeable=False)


def host_array(tensor: torch.Tensor, what: str = "copied to the CPU") -> np.ndarray:
    """The values on the host, read-only. Waits for them. `what`: what is done with them, for error messages.

    Raises:
        Untraceable: the tensor is inside a trace.
        RuntimeError: their computation failed; the message names the operator and the line that called it. Or other
            processes hold a part of the tensor.
    """
    array: jax.Array | None = None
    try:
        if (
            placement.any_mesh
        ):  # before a program reads a view, which every process would have to call
            where = buffer_of(tensor).spec.placement
            placement.require_readable(where, f"{tensor.dtype} of size {list(tensor.shape)}")
        on_host = _is_viewed_on_host(tensor)
        array = buffer_of(tensor).array if on_host else contiguous_array(tensor)
        untraceable.forbid(array, what)
        result = host_values(array) if watching.watcher is None else watching.fetched(array)
        result = _viewed(result, tensor) if on_host else result
        raise_reported()
        return result
    except DONATED_ERRORS as error:
        if array is not None and was_replaced([buffer_of(tensor)], [array]):
            return host_array(tensor, what)
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise explain_buffer(error, buffer_of(tensor)) from None
        if isinstance(error.__context__, jax.errors.JaxRuntimeError):
            raise explain_buffer(error.__context__, buffer_of(tensor)) from None
        raise
