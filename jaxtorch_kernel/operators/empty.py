"""`empty_like`, `new_empty` and `new_empty_strided` of a tensor on a mesh get its sharding, as `zeros_like` does.

torch's own kernels create a tensor without passing on the tensor that it resembles: it would be on one device, which
may not have the memory for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..base.torch_private import OpOverload, overload
from ..base.torch_views import as_strided, composite_kernel
from ..dispatch.registry import kernel
from ..storage import placement
from ..storage.buffer import attached
from ..storage.layout import contiguous_strides

Tensor = torch.Tensor
Factory = Callable[..., Tensor]


def _like_on_mesh(model: Tensor, **options: object) -> Tensor:
    zeros: Tensor = torch.ops.aten.zeros_like(model, **options)
    return zeros


def _new_on_mesh(model: Tensor, size: Sequence[int], **options: object) -> Tensor:
    zeros: Tensor = torch.ops.aten.new_zeros(model, size, **options)
    return zeros


def _strided_on_mesh(
    model: Tensor, size: Sequence[int], stride: Sequence[int], **options: object
) -> Tensor:
    if tuple(stride) == contiguous_strides(tuple(size)):
        return _new_on_mesh(model, size, **options)
    count = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return as_strided(_new_on_mesh(model, [count], **options), size, stride)


def _is_on_mesh(model: Tensor) -> bool:
    buffer = attached(model.untyped_storage())  # None for a wrapper, without data of its own
    return buffer is not None and placement.on_mesh(buffer.spec.placement)


def _register(op: OpOverload, on_mesh: Factory) -> None:
    elsewhere = composite_kernel(op)

    @kernel(op._schema.name.removeprefix("aten::"))
    def run(model: Tensor, *args: object, **options: object) -> Tensor:
        if placement.any_mesh and _is_on_mesh(model):
            return on_mesh(model, *args, **options)
        result: Tensor = elsewhere(model, *args, **options)
        return result


for _name, _on_mesh in (
    ("empty_like", _like_on_mesh),
    ("new_empty", _new_on_mesh),
    ("new_empty_strided", _strided_on_mesh),
):
    if (_op := overload(_name)) is not None:
        _register(_op, _on_mesh)
