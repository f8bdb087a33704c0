"""A tensor's values as one array in logical order, whatever its strides."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from ..lowerings.registry import Lowering
from ..programs import tracing, watching
from ..programs.atomic import DONATED_ERRORS, was_replaced
from ..programs.errors import explain_buffer
from ..storage.buffer import buffer_of
from ..storage.layout import plan
from ..storage.transfer import host_values
from . import values
from .operation import Operation


def _identity(x: Any) -> Any:
    return x


_read: Any = None


def contiguous_array(tensor: torch.Tensor) -> Any:
    """The `jax.Array` (or tracer) of a tensor of the device, of the tensor's shape and dtype.

    The buffer's own array where the tensor is all of it, else a compiled read. Do not donate it.
    """
    array = _memory_array(tensor)
    conjugate, negative = tensor.is_conj(), tensor.is_neg()  # lazy: not yet so in memory
    if not (conjugate or negative):
        return array
    with jax.enable_x64(True):
        array = jax.lax.conj(array) if conjugate else array
        return -array if negative else array


def _memory_array(tensor: torch.Tensor) -> Any:
    global _read
    buffer = buffer_of(tensor)
    if plan(buffer.spec, tensor.dtype, tuple(tensor.shape), tensor.stride()) is None:
        trace = tracing.current() if tracing.depth else None
        if trace is None or (trace.eager and trace.is_fresh(buffer)):
            return buffer.array
        if tensor.requires_grad:
            trace.add_reader(tensor)
        return trace.read(buffer)
    if _read is None:
        _read = Operation(None, Lowering(_identity), name="read")
    with torch.no_grad():
        return buffer_of(_read(tensor)).array


def host_array(tensor: torch.Tensor, what: str = "copied to the CPU") -> np.ndarray:
    """The values on the host, read-only. Waits for them.

    Raises:
        Untraceable: the tensor is inside a trace.
        RuntimeError: their computation failed; the message names the operator and the line that called it.
    """
    array: Any = None
    try:
        array = contiguous_array(tensor)
        tracing.forbid(array, what)
        found = host_values(array) if watching.watcher is None else watching.fetched(array)
        values.raise_noted()
        return found
    except DONATED_ERRORS as error:
        if array is not None and was_replaced([buffer_of(tensor)], [array]):
            return host_array(tensor, what)
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise explain_buffer(error, buffer_of(tensor)) from None
        if isinstance(error.__context__, jax.errors.JaxRuntimeError):
            raise explain_buffer(error.__context__, buffer_of(tensor)) from None
        raise
