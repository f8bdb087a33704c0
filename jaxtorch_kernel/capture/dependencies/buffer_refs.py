"""References to the buffers that a program reads: how each run finds the buffer of a tensor.

A tensor may get another buffer between runs (`tensor.data = other`), a run binds a new tensor to a slot, and a leaf
gets a new gradient. So a reference does not hold the buffer; it goes through the tensor, the slot or the leaf.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...storage.buffer import Buffer
from .effects import layout_of
from .slots import Slot
from .tokens import is_device_tensor
from .trees import Leaf

Tensor = torch.Tensor


class SlotBuffer:
    """The buffer of the tensor in a slot that each run rebinds; None if the tensor has other properties."""

    __slots__ = ("layout", "requires_grad", "slot")

    def __init__(self, slot: Slot | Leaf, tensor: Tensor):
        self.slot = slot
        self.layout = layout_of(tensor)
        self.requires_grad = tensor.requires_grad

    def __call__(self) -> Buffer | None:
        tensor = self.slot.get()
        if not is_device_tensor(tensor) or layout_of(tensor) != self.layout:
            return None
        same = tensor.requires_grad == self.requires_grad
        return tensor.untyped_storage().buffer if same else None  # type: ignore[attr-defined]


class TensorBuffer:
    """The buffer of a tensor. Raises AttributeError if the tensor no longer exists."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor):
        self.tensor = weakref.ref(tensor)

    def __call__(self) -> Buffer:
        return self.tensor().untyped_storage().buffer  # type: ignore[union-attr]  # AttributeError: it is gone


class GradBuffer:
    """The buffer of a leaf's current `.grad`; None if its layout differs.

    Raises AttributeError if the leaf or its gradient no longer exists.
    """

    __slots__ = ("layout", "leaf")

    def __init__(self, leaf: Tensor, gradient: Tensor):
        self.leaf = weakref.ref(leaf)
        self.layout = layout_of(gradient)

    def __call__(self) -> Buffer | None:
        gradient: Any = self.leaf().grad  # type: ignore[union-attr]  # AttributeError: the leaf is gone
        same = layout_of(gradient) == self.layout  # AttributeError: the gradient is gone
        return gradient.untyped_storage().buffer if same else None


def leaf_with_gradient(leaf: Tensor) -> Callable[[], Tensor | None]:
    """A reference to a leaf that returns None while the leaf has no gradient."""
    reference = weakref.ref(leaf)

    def find() -> Tensor | None:
        tensor = reference()
        return tensor if tensor is not None and tensor.grad is not None else None

    return find
