"""What a captured step did to the `.grad` of one leaf, and what each of its runs does again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import attrgetter

import torch

Tensor = torch.Tensor


class GradientChange:
    """A leaf whose `.grad` the code set.

    Attributes:
        leaf: a weak reference to it.
        had: whether it had a gradient before; None if that does not matter.
        after: its gradient afterwards if the code did not create it: None, or a tensor that existed before.
        exchanged: whether the code replaced the old gradient by `after`. Each run creates again what the code created.
        hooks: the leaf's hooks, by identity.
    """

    def __init__(
        self,
        leaf: Tensor,
        before: Tensor | None,
        after: Tensor | None,
        created: bool,
        discarded: bool = False,
    ):
        self.leaf = weakref.ref(leaf)
        # An old gradient that the code discards and sets again must be there.
        discarded &= after is None or after is not before
        self.had = None if discarded else before is not None
        self.exchanged = not created and (after is not before or discarded)
        self.after = after if self.exchanged else None
        self.hooks = hooks_of(leaf)

    def set(self, gradient: Tensor | None) -> None:
        """Set the leaf's gradient."""
        leaf = self.leaf()
        if leaf is not None:
            leaf.grad = gradient


def hooks_of(leaf: Tensor) -> tuple[int, ...]:
    """The hooks that torch's engine runs for a leaf, by identity."""
    tables = leaf._backward_hooks, leaf._post_accumulate_grad_hooks
    return tuple(id(hook) for table in tables if table for hook in table.values())


_backward_hooks = attrgetter("_backward_hooks")
_accumulated_hooks = attrgetter("_post_accumulate_grad_hooks")


def any_hooks(leaves: Sequence[Tensor | None]) -> bool:
    """Whether one of the leaves has hooks. Raises AttributeError if one no longer exists (None)."""
    return any(map(_backward_hooks, leaves)) or any(map(_accumulated_hooks, leaves))
