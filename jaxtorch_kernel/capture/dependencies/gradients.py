"""Finds the leaves whose `.grad` the traced code set.

A leaf's `.grad` is recorded when the code first encounters the leaf. If it differs later, either the code set it, by
`backward()` or by assignment, or another thread did, running eagerly meanwhile. A gradient belongs to the code if the
trace created it or the code refers to it by name. A gradient that is missing was cleared by the code if the code uses
an optimizer or mentions a name that can clear one.
"""

from __future__ import annotations

import torch

from ...programs import tracing
from ...storage.buffer import buffer_of
from .notes import Notes

Tensor = torch.Tensor


class Gradients:
    """The `.grad` of the leaves that one trace met.

    Args:
        notes: of the trace, with the leaves (`Notes.gradients`).

    Attributes:
        trace: that is open while the code runs; None before.
    """

    def __init__(self, notes: Notes):
        self._notes = notes
        self.trace: tracing.Trace | None = None

    def is_set(self, leaf: Tensor, before: Tensor | None) -> bool:
        """Whether the code, rather than an eager thread, set the `.grad` of a leaf."""
        notes = self._notes
        now = leaf.grad
        if now is before:
            return False
        if now is None:
            return self.are_used()
        if now.device.type != "jax" or self.trace is None or self.trace.created(buffer_of(now)):
            return True
        known = [t for _, reference in notes.tensors.values() if (t := reference()) is not None]
        known += [g for _, g in notes.gradients.values() if g is not None]
        return any(t.device.type == "jax" and buffer_of(t) is buffer_of(now) for t in known)

    def are_used(self) -> bool:
        """Whether the code may read or clear a leaf's `.grad`."""
        return bool(self._notes.optimizers) or self._notes.uses_gradients

    def follow_others(self) -> None:
        """Note the `.grad` that other threads gave to leaves while the code ran."""
        gradients = self._notes.gradients
        for key, (reference, gradient) in gradients.items():
            leaf = reference()
            if leaf is not None and not self.is_set(leaf, gradient):
                gradients[key] = reference, leaf.grad

    def give_back(self) -> None:
        """Restore the `.grad` of each leaf."""
        for reference, gradient in list(self._notes.gradients.values()):
            leaf = reference()
            if leaf is not None and self.is_set(leaf, gradient):
                leaf.grad = gradient
