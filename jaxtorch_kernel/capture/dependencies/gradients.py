"""Finds the leaves whose `.grad` the traced code set.

A leaf's `.grad` is recorded when the code first reaches the leaf. If it differs later, either the code set it, by
`backward()` or by assignment, or another thread did, running eagerly meanwhile. The code set a gradient if the trace
created it or the code refers to it by name. The code cleared a gradient if it is gone and the code uses an optimizer or
mentions a name that can clear one.
"""

from __future__ import annotations

import jax
import torch

from ...programs import tracing
from ...programs.trees import is_device_tensor
from ...storage.buffer import buffer_of
from .notes import Notes

Tensor = torch.Tensor


class Gradients:
    """The `.grad` of the leaves that one trace reached.

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
        # Of a trace inside this one, such as a scan's body.
        if isinstance(buffer_of(now).array, jax.core.Tracer):
            return True
        known = [reference() for _, reference in notes.tensors.values()]
        known += [gradient for _, gradient in notes.gradients.values()]
        return any(buffer_of(t) is buffer_of(now) for t in known if is_device_tensor(t))

    def are_used(self) -> bool:
        """Whether the code may read or clear a leaf's `.grad`."""
        return bool(self._notes.optimizers) or self._notes.uses_gradients

    def accept_other_threads(self) -> None:
        """Record the `.grad` that other threads gave to leaves while the code ran as the previous ones."""
        gradients = self._notes.gradients
        for key, (reference, gradient) in gradients.items():
            leaf = reference()
            if leaf is not None and not self.is_set(leaf, gradient):
                gradients[key] = reference, leaf.grad

    def restore(self) -> None:
        """Restore the `.grad` of each leaf."""
        for reference, gradient in list(self._notes.gradients.values()):
            leaf = reference()
            if leaf is not None and self.is_set(leaf, gradient):
                leaf.grad = gradient
