"""View operators: a new tensor over the same Storage, computed by torch's own Meta kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from ..base import torch_private as private
from ..base.torch_private import OpOverload
from ..dispatch.registry import kernel
from ..programs import tracing
from ..storage.buffer import buffer_of
from .factories import set_geometry

Tensor = torch.Tensor
aten = torch.ops.aten
Views = TypeVar("Views", bound=Tensor | Sequence[Tensor])


def view(
    op: OpOverload, self: Tensor, *args: object, **kwargs: object
) -> Tensor | Sequence[Tensor]:
    """Any view operator. It reads no data."""
    views: Tensor | Sequence[Tensor] = private.alias(op, self, *args, **kwargs)
    return views if op is aten.detach.default else _noted(self, views)


def _noted(source: Tensor, views: Views) -> Views:
    """Tell an open trace about views; returns them."""
    if tracing.depth:
        trace = tracing.current()
        if trace is not None:
            trace.add_views(source, views)
    return views


# `alias` has no kernel here: torch's, in C++, returns a result without a Python object, which can become one of a
# subclass (`as_subclass`). So do torch's kernels of the two operators below, but a trace must know about their results.


def _same(self: Tensor) -> Tensor:
    return _noted(self, private.as_strided(self, self.shape, self.stride(), self.storage_offset()))


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
def as_strided(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A view of any geometry. It is checked against the buffer, because the Storage may report 0 bytes."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    _check_geometry(self, size, stride, offset)
    return _noted(self, private.as_strided(self, size, stride, offset))


@kernel("as_strided_")
def as_strided_(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Change the geometry in place, which is all that `transpose_`, `squeeze_` and the like do."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    _check_geometry(self, size, stride, offset)
    set_geometry(self, size, stride, offset)
    return self


def _check_geometry(
    self: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | torch.SymInt
) -> None:
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
