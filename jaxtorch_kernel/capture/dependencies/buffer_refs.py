"""References to the buffers that a program reads: how each run finds the buffer of a tensor.

A tensor may get another buffer between runs (`tensor.data = other`), a run binds a new tensor to a slot, and a leaf
gets a new gradient. So a reference does not hold the buffer; it goes through the tensor, the slot or the leaf.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from ...programs.trees import is_device_tensor
from ...storage.buffer import Buffer, buffer_of
from .effects import layout_of
from .slots import Slot
from .tokens import Token, token
from .trees import Leaf

Tensor = torch.Tensor
BufferRef: TypeAlias = Callable[[], Buffer | None]


class SlotBuffer:
    """The buffer of the tensor in a slot that each run rebinds; None if the tensor has other properties."""

    __slots__ = ("attributes", "layout", "requires_grad", "slot")

    def __init__(self, slot: Slot | Leaf, tensor: Tensor):
        self.slot = slot
        self.attributes = _attributes(tensor)
        self.layout = layout_of(tensor)
        self.requires_grad = tensor.requires_grad

    def __call__(self) -> Buffer | None:
        tensor = self.slot.get()
        if not is_device_tensor(tensor) or layout_of(tensor) != self.layout:
            return None
        same = tensor.requires_grad == self.requires_grad
        return tensor.untyped_storage().buffer if same else None  # type: ignore[attr-defined]

    def is_alike(self) -> bool:
        """Whether the tensor has the properties of the one in the trace, its class and a user's attributes included."""
        return self() is not None and _attributes(self.slot.get()) == self.attributes


def _attributes(tensor: object) -> tuple[type, dict[str, Token]]:
    """The class of a tensor, and the attributes that a user gave it."""
    return type(tensor), {name: token(value) for name, value in vars(tensor).items()}


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


class BufferRefs:
    """The references to all buffers that the code reached.

    Attributes:
        replaced: tensors that each run replaces by others in their slots.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """`tensors`: those that the code read by name."""
        self.replaced: list[Tensor] = []
        self._tensors: dict[int, list[Tensor]] = {}  # by the identity of the buffer
        self._references: dict[int, list[BufferRef]] = {}  # other ways to find a buffer
        for tensor in tensors:
            self._tensors.setdefault(id(buffer_of(tensor)), []).append(tensor)

    def is_named(self, buffer: object) -> bool:
        """Whether a buffer is read through a tensor that the code read by name."""
        return id(buffer) in self._tensors and id(buffer) not in self._references

    def add(self, tensor: Tensor, reference: BufferRef) -> None:
        """Use this reference to find the buffer of a tensor at each run."""
        self._references.setdefault(id(buffer_of(tensor)), []).append(reference)

    def all_of(self, buffer: object) -> list[BufferRef]:
        """Every way in which the code reached a buffer; the first is how it is read at each run."""
        tensors = [
            t for t in self._tensors.get(id(buffer), ()) if not any(t is r for r in self.replaced)
        ]
        return [*self._references.get(id(buffer), ()), *map(TensorBuffer, tensors)]

    def split(
        self, buffers: Sequence[BufferRef]
    ) -> tuple[list[weakref.ref[Tensor]], list[BufferRef], list[Buffer | None]]:
        """How a run finds the captured buffers.

        A buffer is found through its tensor if it has one, since `tensor.data = other` gives the tensor another
        buffer, or through its slot, if each run binds a new tensor there.

        Returns:
            the tensors; references to the other buffers; the current buffers of both, in this order.
        """
        alive = [reference() for reference in buffers]
        named = [buffer for buffer in alive if self.is_named(buffer)]
        others = [(b, r) for b, r in zip(alive, buffers, strict=True) if not self.is_named(b)]
        tensors = [weakref.ref(self._tensors[id(buffer)][0]) for buffer in named]
        references = [
            self._references.get(id(buffer), [reference])[0] for buffer, reference in others
        ]
        return tensors, references, [*named, *(buffer for buffer, _ in others)]

    def forget(self) -> None:
        """Drop the tensors."""
        self._tensors.clear()
        self.replaced.clear()
