"""A tensor's values as one array in logical order, whatever its strides."""

from __future__ import annotations

import jax
import numpy as np
import torch

from ..lowerings.registry import Lowering
from ..programs import tracing, untraceable, watching
from ..programs.atomic import was_replaced
from ..programs.errors import explain_buffer
from ..programs.writes import DONATED_ERRORS
from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.layout import is_array
from ..storage.transfer import host_values
from .operation import Operation
from .value_checks import raise_reported


def _identity(x: jax.Array) -> jax.Array:
    return x


_read: Operation | None = None


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
        array = contiguous_array(tensor)
        untraceable.forbid(array, what)
        result = host_values(array) if watching.watcher is None else watching.fetched(array)
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
