"""Indexing: masks are converted to coordinates, and a masked write of a single value is a `where`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..base.torch_private import OpOverload, overload
from ..dispatch.registry import kernel
from ..programs.site import warn
from .choice import operation_of

Tensor = torch.Tensor


_MASKS = (torch.bool, torch.uint8)
_UINT8 = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."

_INDICES = (torch.int64, torch.int32)


def _expanded(self: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The indices with each mask replaced by the coordinates of its true elements.

    Raises:
        IndexError: an index has another dtype, or a mask does not match the shape that it masks.
    """
    result: list[Tensor | None] = []
    for position, i in enumerate(indices):
        if i is not None and i.dtype in _MASKS:
            if i.dtype == torch.uint8:
                warn(_UINT8)
            d = len(result)
            if i.shape != self.shape[d : d + i.dim()]:
                raise IndexError(
                    f"The shape of the mask {list(i.shape)} at index {position} does not match the shape of the "
                    f"indexed tensor {list(self.shape)} at index {d}"
                )
            result += torch.nonzero(i).unbind(1)
            continue
        if i is not None and i.dtype not in _INDICES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        result.append(i)
    return result


def _is_where(self: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> bool:
    """Whether this write is a `where`: a single mask, and a value that is the same for all of its true elements."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool:
        return False
    d, mask = given[0]
    trailing = self.dim() - d - mask.dim()
    fits = tuple(mask.shape) == tuple(self.shape[d : d + mask.dim()])
    return fits and (values.numel() == 1 or values.dim() <= trailing) and values.dim() <= self.dim()


@kernel("index.Tensor")
def index_tensor(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`x[indices]`. Masks among the indices are read first."""
    return operation_of(torch.ops.aten.index.Tensor)(self, _expanded(self, indices))


def _writer(op: OpOverload) -> Callable[..., Tensor]:
    def write(
        self: Tensor,
        indices: Sequence[Tensor | None],
        values: Tensor,
        *flags: bool,
        **named: bool,
    ) -> Tensor:
        if _is_where(self, indices, values):
            indices = [i if i is None else i.to(self.device) for i in indices]
        else:
            indices = _expanded(self, indices)
        return operation_of(op)(self, indices, values, *flags, **named)

    return write


for _name in ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"):
    if (_op := overload(_name)) is not None:
        kernel(_name)(_writer(_op))
