"""The node of a call of a `Function` in torch's graph, while captured code is traced."""

from __future__ import annotations

from typing import Any

import torch

from ..base import torch_private as private

Tensor = torch.Tensor


class RecordedCall(private.BackwardCFunction):
    """A node that torch's C++ makes, and another that has the gradients (`applied.py`).

    Attributes:
        inner: the other node. None if JAX does not differentiate the call.
        outputs: of the values that the Function returned, those that the other node has gradients from.
        inputs: of the arguments, those that the other node has gradients of.
        count: how many arguments there are.
        flow: for each value that the Function returned, the indices of `next_functions` that a gradient flows to.
    """

    inner: Any = None
    outputs: list[int]
    inputs: list[int]
    count: int
    flow: list[frozenset[int]] | None = None

    def apply(self, *cotangents: Tensor | None) -> object:
        """The gradients of the arguments."""
        if self.inner is None:
            return super().apply(*cotangents)
        _, _, *gradients = self.inner.apply(*(cotangents[i] for i in self.outputs))
        found: list[Tensor | None] = [None] * self.count
        for index, gradient in zip(self.inputs, gradients, strict=False):
            found[index] = gradient
        return tuple(found)
