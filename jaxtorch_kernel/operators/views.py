"""View operators: a new tensor over the same Storage, computed by torch's own Meta kernels."""

from __future__ import annotations

from typing import Any, cast

import torch

from ..base import torch_private as private
from ..dispatch.registry import kernel
from ..programs import tracing
from ..storage.buffer import buffer_of
from .factories import set_geometry

Tensor = torch.Tensor
aten = torch.ops.aten


def view(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any view operator. It reads no data."""
    return _noted(args[0], private.alias(op, *args, **kwargs), op)


def _noted(source: Tensor, views: Any, op: Any = None) -> Any:
    if tracing.depth and op is not aten.detach.default:
        trace = tracing.current()
        if trace is not None:
            trace.add_views(source, views)
    return views


# `alias` is torch's own kernel, in C++: a result that has no Python object yet can become one of a subclass
# (`as_subclass`). torch's kernels of these two do so as well, and a trace must know of their results.


def _same(self: Tensor) -> Tensor:
    again = private.as_strided(self, self.shape, self.stride(), self.storage_offset())
    return cast(Tensor, _noted(self, again))


@kernel("_conj")
def conj(self: Tensor) -> Tensor:
    """Conjugated lazily."""
    result = _same(self)
    private.set_conj(result, not self.is_conj())
    return result


@kernel("_neg_view")
def neg_view(self: Tensor) -> Tensor:
    """Negated lazily."""
    result = _same(self)
    private.set_neg(result, not self.is_neg())
    return result


@kernel("as_strided")
def as_strided(self: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A view of any geometry, checked against the buffer: the Storage itself may report 0 bytes."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    _check_geometry(self, size, stride, offset)
    return _noted(self, private.as_strided(self, size, stride, offset))


@kernel("as_strided_")
def as_strided_(self: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """Another geometry in place, which is all that `transpose_`, `squeeze_` and such do."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    _check_geometry(self, size, stride, offset)
    set_geometry(self, size, stride, offset)
    return self


def _check_geometry(self: Tensor, size: Any, stride: Any, offset: Any) -> None:
    reach = offset + 1
    for n, s in zip(size, stride, strict=True):
        if s < 0:
            raise RuntimeError(
                "as_strided: Negative strides are not supported at the moment, "
                f"got strides: {list(stride)}"
            )
        reach += (n - 1) * s
    needed = reach * self.dtype.itemsize
    available = buffer_of(self).spec.nbytes
    if (needed > available and 0 not in size) or offset < 0:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {self.dtype.itemsize} requiring a storage size of {needed} are out of bounds "
            f"for storage of size {available}"
        )
