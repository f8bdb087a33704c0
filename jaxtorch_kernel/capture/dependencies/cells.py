"""How a program finds, at each run, the memory of a tensor that it reads: through the tensor, its slot or its leaf."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from .effects import layout_of

Tensor = torch.Tensor


class SlotCell:
    """The buffer of the tensor in a slot that each run rebinds."""

    __slots__ = ("geometry", "requires_grad", "slot")

    def __init__(self, slot: Any, tensor: Tensor):
        self.slot = slot
        self.geometry = layout_of(tensor)
        self.requires_grad = tensor.requires_grad

    def __call__(self) -> Any:
        now = self.slot.get()
        same = isinstance(now, Tensor) and now.device.type == "jax"
        if not same or layout_of(now) != self.geometry or now.requires_grad != self.requires_grad:
            return None
        return now.untyped_storage().buffer


class TensorCell:
    """The buffer of a tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor):
        self.tensor = weakref.ref(tensor)

    def __call__(self) -> Any:
        return self.tensor().untyped_storage().buffer  # type: ignore[union-attr]  # AttributeError: it is gone


class GradCell:
    """The buffer of a leaf's `.grad` that the program reads: of the one that the leaf has now."""

    __slots__ = ("geometry", "leaf")

    def __init__(self, leaf: Tensor, gradient: Tensor):
        self.leaf = weakref.ref(leaf)
        self.geometry = layout_of(gradient)

    def __call__(self) -> Any:
        gradient: Any = self.leaf().grad  # type: ignore[union-attr]  # AttributeError: the leaf is gone
        same = layout_of(gradient) == self.geometry  # AttributeError: the gradient is
        return gradient.untyped_storage().buffer if same else None


def with_gradient(leaf: Tensor) -> Callable[[], Tensor | None]:
    """Gives a leaf, while it has a gradient."""
    reference = weakref.ref(leaf)

    def now() -> Tensor | None:
        tensor = reference()
        return tensor if tensor is not None and tensor.grad is not None else None

    return now
