"""`clone`, and the operators that write to a view of a copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..dispatch.registry import kernel
from ..storage.buffer import buffer_of
from .choice import operation_of

Tensor = torch.Tensor


@kernel("clone")
def clone(self: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    """`Tensor.clone`. Like `copy_`, it receives tensors that are lazily conjugated or negated."""
    if self.is_conj() or self.is_neg():
        return torch.empty_like(self, memory_format=memory_format).copy_(self)
    return operation_of(torch.ops.aten.clone.default)(self, memory_format=memory_format)


def _clone_of_memory(self: Tensor) -> Tensor:
    """A copy of all of the memory behind a tensor, with the same geometry."""
    count = buffer_of(self).spec.nbytes // self.dtype.itemsize
    memory = torch.as_strided(self, (count,), (1,), 0).clone()
    return memory.as_strided(self.shape, self.stride(), self.storage_offset())


@kernel("as_strided_scatter")
def as_strided_scatter(
    self: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """A copy of `self` with `src` written through a view of that geometry."""
    result = _clone_of_memory(self)
    _write(result.as_strided(size, stride, storage_offset), src)
    return result


@kernel("select_scatter")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `self` with one slice replaced. As in the functions below, the index is a run-time operand."""
    result = self.clone()
    _write(result.select(dim, index), src)
    return result


@kernel("slice_scatter")
def slice_scatter(
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """A copy of `self` with a range of one dimension replaced."""
    result = self.clone()
    _write(torch.ops.aten.slice(result, dim, start, end, step), src)
    return result


@kernel("diagonal_scatter")
def diagonal_scatter(
    self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy of `self` with a diagonal replaced."""
    result = self.clone()
    _write(result.diagonal(offset, dim1, dim2), src)
    return result


def _write(view: Tensor, src: Tensor) -> None:
    if view.shape != src.shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(view.shape)}"
        )
    view.copy_(src)
