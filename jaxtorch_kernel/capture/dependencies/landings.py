"""Tensors that the code creates and stores in places that outlive it: each run stores a new one there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import torch

from ...programs.trees import is_device_tensor
from ...storage.buffer import Buffer, Spec, buffer_of, spec_of, wrap
from ...storage.layout import covers_buffer
from ..errors import CaptureError
from .slots import Target

Tensor = torch.Tensor

# A weak reference to the buffer of a tensor that was computed from inputs and outlives the trace, and its spec. The
# values of these tensors follow the results of a program, in the order of `Captured.escaped`.
Escaped: TypeAlias = tuple[weakref.ref[Buffer], Spec]


class Landing:
    """Stores the tensor of each run where the trace stored the one that it created.

    Args:
        put: stores the tensor.
        tensor: the one of the trace.
        escaped: all tensors that outlive the trace.
    """

    __slots__ = ("buffer", "dtype", "offset", "output", "put", "size", "spec", "stride")

    def __init__(self, put: Callable[[Tensor], None], tensor: Tensor, escaped: Sequence[Escaped]):
        self.put = put
        self.buffer: Buffer | None = buffer_of(tensor)
        buffers = [reference() for reference, _ in escaped]
        self.output = next(i for i, buffer in enumerate(buffers) if buffer is self.buffer)
        self.spec = escaped[self.output][1]
        self.size, self.dtype = tuple(tensor.shape), tensor.dtype
        self.offset = tensor.storage_offset()
        whole = tensor.is_contiguous() and covers_buffer(tensor, self.spec)
        self.stride = None if whole else tensor.stride()

    def __call__(self, array: Any, on_mesh: bool) -> None:
        """Store this run's tensor, whose data is a `jax.Array`. On a mesh, the program chose its sharding."""
        spec = self.spec
        if on_mesh and not isinstance(array, jax.core.Tracer):
            spec = spec_of(spec.dtype, spec.shape, array.sharding)
        # Others may hold the trace's tensor: it gets the first run's value.
        if self.buffer is not None:
            self.buffer.write(array, spec)
            self.buffer = None
        tensor = wrap(array, spec, self.size, self.dtype)
        if self.stride is not None:
            with torch.no_grad():
                tensor = tensor.as_strided(self.size, self.stride, self.offset)
        self.put(tensor)


class Binding:
    """A tensor that the code created, and the targets to which it bound the tensor.

    Attributes:
        targets: where it was stored.
        tensor: of the trace.
        before: the tensor of the device that the first target held previously, if any.
        refusal: the error to raise if the code must not store tensors.
    """

    def __init__(self, target: Target, tensor: Tensor, before: object, refusal: CaptureError):
        self.refusal = refusal
        self.targets = [target]
        self.tensor = tensor
        self.before = before if is_device_tensor(before) else None

    def landing(self, escaped: Sequence[Escaped]) -> Landing:
        """Where each run stores its tensor."""

        def put(tensor: Tensor) -> None:
            for target in self.targets:
                target.set(tensor)

        return Landing(put, self.tensor, escaped)
