"""View operators: a new tensor over the same Storage, whose geometry torch's own Meta kernels compute.

A view operator's kernel (`_view_kernel`) computes each geometry once. A repeated view only makes the alias, in C++
where the compiled module is there (`native/view.h`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from ..base import torch_private as private
from ..base import torch_views
from ..base.torch_private import OpOverload
from ..dispatch.registry import kernel
from ..dispatch.schema import Kernel, Signature
from ..programs import tracing
from ..storage.buffer import buffer_of
from .factories import set_geometry

Tensor = torch.Tensor
aten = torch.ops.aten
Views = TypeVar("Views", bound=Tensor | Sequence[Tensor])


# Every view operator that autograd sees and whose kernel in torch would call the device, mostly as `as_strided`. It is
# not worth it for `detach`, `view.dtype` and such: they make their alias in C++.
VIEWS = (
    "_reshape_alias",
    "diagonal",
    "expand",
    "permute",
    "select.int",
    "slice.Tensor",
    "split.Tensor",
    "split_with_sizes",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "t",
    "transpose.int",
    "unbind.int",
    "unfold",
    "unsqueeze",
    "view",
    "view_as_complex",
    "view_as_real",
)

_MOST = 4096  # how many geometries each operator remembers


def _geometries(source: Tensor, views: Tensor | Sequence[Tensor]) -> Any:
    """Size, stride and offset from the source, for each view; None if their dtype is another (`view_as_real`)."""
    if not isinstance(views, Tensor):
        return [_geometries(source, v) for v in views]
    if views.dtype != source.dtype:
        return None
    return tuple(views.shape), views.stride(), views.storage_offset() - source.storage_offset()


def view(
    op: OpOverload, self: Tensor, *args: object, **kwargs: object
) -> Tensor | Sequence[Tensor]:
    """Any view operator. It reads no data."""
    views: Tensor | Sequence[Tensor] = torch_views.view_kernel(op)(self, *args, **kwargs)
    return views if op is aten.detach.default else _noted(self, views)


def _noted(source: Tensor, views: Views) -> Views:
    """Report views to an open trace; returns them."""
    if tracing.depth:
        trace = tracing.current()
        if trace is not None and trace.differentiable:
            trace.active.add_views(source, views)
    return views


def _view_kernel(op: OpOverload) -> Kernel:
    """The kernel of a view operator: it computes each geometry once, and then only makes aliases.

    What the operator does depends on the tensor's size and stride and on the arguments, and not on the offset.
    """
    known: dict[tuple[object, ...], Any] = {}
    several = Signature(op).returns_list[0]
    lists = [str(a.type).startswith("List") for a in op._schema.arguments[1:]]
    any_list = any(lists)
    # As `alias_at`, whose conditions the kernels check themselves: its call takes a tenth of the time of a view.
    reinterpret = torch_views.reinterpret or torch_views.alias_at
    inference, alias_at = torch_views.inference_mode, torch_views.alias_at

    def computed(key: tuple[object, ...], self: Tensor, *args: object) -> Tensor | Sequence[Tensor]:
        views = view(op, self, *args)
        if len(known) >= _MOST:
            known.clear()
        known[key] = _geometries(self, views)
        return views

    def kernel(self: Tensor, *args: object, **kwargs: object) -> Tensor | Sequence[Tensor]:
        if kwargs:
            return view(op, self, *args, **kwargs)
        key = (self.shape, self.stride(), *(map(_hashable, args) if any_list else args))
        try:
            geometry = known.get(key)
        except TypeError:  # a symbolic number
            return view(op, self, *args)
        if geometry is None:
            return computed(key, self, *args)
        alias = reinterpret if self.is_inference() is inference() else alias_at
        views = [alias(self, *g) for g in geometry] if several else alias(self, *geometry)
        return _noted(self, views) if tracing.depth else views

    def sized(
        self: Tensor, size: Sequence[int], *args: object, **kwargs: object
    ) -> Tensor | Sequence[Tensor]:
        if args or kwargs:
            return view(op, self, size, *args, **kwargs)
        key = (self.shape, self.stride(), *size)
        try:
            geometry = known.get(key)
        except TypeError:  # a symbolic number
            return view(op, self, size)
        if geometry is None:
            return computed(key, self, size)
        alias = reinterpret if self.is_inference() is inference() else alias_at
        made = alias(self, *geometry)
        return _noted(self, made) if tracing.depth else made

    # One list of numbers (`view`, `permute`, `expand`) makes a key without packing them, a tenth of the time of a view.
    return sized if sum(lists) == 1 and lists[0] and not several else kernel


def _hashable(argument: object) -> object:
    return tuple(argument) if isinstance(argument, list) else argument


for _name in VIEWS:
    _op = private.overload(_name)
    if _op is not None:
        kernel(_name)(_view_kernel(_op))


# `alias` has no kernel here: torch's, in C++, returns a result without a Python object, which can become one of a
# subclass (`as_subclass`). So do torch's kernels of the two operators below, but a trace must know about their results.


def _same(self: Tensor) -> Tensor:
    return _noted(self, torch_views.alias_at(self, self.shape, self.stride(), 0))


@kernel("alias_copy")
def alias_copy(self: Tensor) -> Tensor:
    """A copy. Torch's kernel copies an `alias`, and a trace would not know that a gradient flows to the alias."""
    return self.clone(memory_format=torch.contiguous_format)


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
    own = self.storage_offset()
    offset = own if storage_offset is None else storage_offset
    size, stride = tuple(size), tuple(stride)
    key = (buffer_of(self).spec, self.dtype, size, stride, offset)
    if key in _checked:
        made = torch_views.alias_at(self, size, stride, offset - own)
        return _noted(self, made) if tracing.depth else made
    _check_geometry(self, size, stride, offset)
    result = torch_views.as_strided(self, size, stride, offset)
    if len(_checked) >= _MOST:
        _checked.clear()
    _checked.add(key)
    return _noted(self, result)


_checked: set[tuple[object, ...]] = set()


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
