"""Tensors that the code creates and binds to places that outlive it: each run binds a new one there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...storage.buffer import buffer_of, wrap
from ...storage.layout import covers_buffer
from ..errors import CaptureError

Tensor = torch.Tensor


class Landing:
    """A tensor that the trace created and left in a place that outlives it: each run leaves a new one there.

    Args:
        put: takes the tensor to its place.
        tensor: the one of the trace.
        trace_made: (weak reference to a buffer, its spec) of all tensors that outlive the trace; their values
            follow the results of the program in this order.
    """

    __slots__ = ("cell", "dtype", "offset", "output", "put", "size", "spec", "stride")

    def __init__(self, put: Callable[[Tensor], None], tensor: Tensor, trace_made: Sequence[Any]):
        self.put = put
        self.cell: Any = buffer_of(tensor)
        references = [reference() for reference, _ in trace_made]
        self.output = next(i for i, cell in enumerate(references) if cell is self.cell)
        self.spec = trace_made[self.output][1]
        self.size, self.dtype = tuple(tensor.shape), tensor.dtype
        self.offset = tensor.storage_offset()
        whole = tensor.is_contiguous() and covers_buffer(tensor, self.spec)
        self.stride = None if whole else tensor.stride()

    def __call__(self, array: Any) -> None:
        """Leave this run's tensor."""
        if (
            self.cell is not None
        ):  # whoever else holds the trace's tensor gets the first run's value
            self.cell.write(array, self.spec)
            self.cell = None
        tensor = wrap(array, self.spec, self.size, self.dtype)
        if self.stride is not None:
            with torch.no_grad():
                tensor = tensor.as_strided(self.size, self.stride, self.offset)
        self.put(tensor)


class Binding:
    """A place to which the code bound a tensor that it created.

    Attributes:
        slots: the places.
        tensor: of the trace.
        before: the tensor of the device that stood there, if any.
        refusal: the error for code that may keep no tensor.
    """

    def __init__(self, slot: Any, tensor: Tensor, before: Any, refusal: CaptureError):
        self.refusal = refusal
        self.slots = [slot]
        self.tensor = tensor
        self.before = before if isinstance(before, Tensor) and before.device.type == "jax" else None

    def landing(self, trace_made: Sequence[Any]) -> Landing:
        """Where its tensor goes."""

        def put(tensor: Tensor) -> None:
            for slot in self.slots:
                slot.set(tensor)

        return Landing(put, self.tensor, trace_made)
