"""Of which leaves the traced code set the `.grad`.

A leaf's `.grad` is noted when the code meets the leaf first. Where it is another one later, the code may have set it,
by `backward()` or by an assignment; or another thread did, which runs eagerly meanwhile. A gradient is the code's where
the trace has made it, or where the code knows it by name. Where a gradient is gone, the code took it away if it uses an
optimizer or mentions a name that can do so.
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
        """Whether the code gave a leaf another `.grad`; threads that run eagerly meanwhile do so too."""
        notes = self._notes
        now = leaf.grad
        if now is before:
            return False
        if now is None:
            return self.are_used()
        if now.device.type != "jax" or self.trace is None or self.trace.made(buffer_of(now)):
            return True
        known = [t for _, reference in notes.tensors.values() if (t := reference()) is not None]
        known += [g for _, g in notes.gradients.values() if g is not None]
        return any(t.device.type == "jax" and buffer_of(t) is buffer_of(now) for t in known)

    def are_used(self) -> bool:
        """Whether the code may read a leaf's `.grad`, or take it away."""
        return bool(self._notes.optimizers) or self._notes.uses_gradients

    def follow_others(self) -> None:
        """Note the `.grad` that other threads gave to leaves while the code ran."""
        gradients = self._notes.gradients
        for key, (reference, gradient) in gradients.items():
            leaf = reference()
            if leaf is not None and not self.is_set(leaf, gradient):
                gradients[key] = reference, leaf.grad

    def give_back(self) -> None:
        """Let each leaf have the `.grad` that it had."""
        for reference, gradient in list(self._notes.gradients.values()):
            leaf = reference()
            if leaf is not None and self.is_set(leaf, gradient):
                leaf.grad = gradient
